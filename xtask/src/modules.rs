//! A crate as the compiler sees it: a tree of modules, each with its items, tests left out.

use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::{Attribute, ImplItem, Item, UseTree};

/// Where a crate's trees of modules begin.
const DOORS: [&str; 2] = ["src/lib.rs", "src/main.rs"];
/// Re-exports and imports are followed so far; a longer chain is a mistake of ours.
const HOPS_MAX: usize = 16;

/// One module without its tests.
pub struct Module {
    /// Its name from the crate's root: empty, or `["trie", "node"]`.
    pub path: Vec<String>,
    /// The file in which it stands.
    pub file: PathBuf,
    /// Its items, without submodules and tests.
    pub items: Vec<Item>,
    /// What its `use` items call by a short name.
    imports: BTreeMap<String, Vec<String>>,
}

/// The modules of one library or program.
#[derive(Default)]
pub struct Modules(pub Vec<Module>);

impl Modules {
    /// Reads the tree whose root is `file` (`src/lib.rs` or `src/main.rs`).
    ///
    /// # Errors
    /// A file that is not there or is not Rust, by name.
    pub fn read(file: &Path) -> Result<Self, String> {
        let mut found = Self::default();
        found.add_file(Vec::new(), file)?;
        Ok(found)
    }

    /// A tree in one text, its modules inline.
    #[cfg(test)]
    pub fn of_text(text: &str) -> Self {
        let mut found = Self::default();
        let items = syn::parse_file(text).expect("the text is Rust").items;
        found.add(Vec::new(), Path::new("src/lib.rs"), items).expect("no file is read");
        found
    }

    fn add_file(&mut self, path: Vec<String>, file: &Path) -> Result<(), String> {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let parsed = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        self.add(path, file, parsed.items)
    }

    fn add(&mut self, path: Vec<String>, file: &Path, items: Vec<Item>) -> Result<(), String> {
        let index = self.0.len();
        let imports = BTreeMap::new();
        self.0.push(Module { path: path.clone(), file: file.to_path_buf(), items: Vec::new(), imports });
        for mut item in items.into_iter().filter(|item| !is_test(attributes(item))) {
            match &mut item {
                Item::Mod(module) => {
                    let inside = [&path[..], &[module.ident.to_string()]].concat();
                    match module.content.take() {
                        Some((_, items)) => self.add(inside, file, items)?,
                        None => self.add_file(inside.clone(), &home(file, &inside, &module.attrs))?,
                    }
                    continue;
                }
                Item::Use(import) => {
                    for (name, target) in names_of(&import.tree) {
                        self.0[index].imports.insert(name, target);
                    }
                }
                Item::Impl(block) => block.items.retain(|item| !is_test(attributes_inside(item))),
                _ => {}
            }
            self.0[index].items.push(item);
        }
        Ok(())
    }

    /// The files of the tree, each once.
    #[must_use]
    pub fn files(&self) -> BTreeSet<PathBuf> {
        self.0.iter().map(|module| module.file.clone()).collect()
    }

    /// The module that defines what `path` means in the module `from`; `None` for what is of another crate.
    #[must_use]
    pub fn resolve(&self, from: usize, path: &[String]) -> Option<usize> {
        self.follow(from, path, HOPS_MAX)
    }

    fn follow(&self, from: usize, path: &[String], hops: usize) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Some(0),
            "self" => Some(from),
            "super" => self.parent(from),
            _ => self.child(from, first),
        };
        let Some(mut at) = start else {
            let target = self.0[from].imports.get(first).filter(|target| hops > 0 && target[0] != *first)?;
            return self.follow(from, &[target, rest].concat(), hops - 1);
        };
        let mut rest = rest;
        while let Some((name, after)) = rest.split_first() {
            if name == "super" {
                at = self.parent(at)?;
            } else if let Some(child) = self.child(at, name) {
                at = child;
            } else {
                let passed_on = self.0[at].imports.get(name).filter(|target| hops > 0 && target[0] != *name);
                return match passed_on {
                    Some(target) => self.follow(at, &[target, after].concat(), hops - 1),
                    None => Some(at),
                };
            }
            rest = after;
        }
        Some(at)
    }

    fn parent(&self, of: usize) -> Option<usize> {
        let (_, parent) = self.0[of].path.split_last()?;
        self.0.iter().position(|module| module.path == parent)
    }

    fn child(&self, of: usize, name: &str) -> Option<usize> {
        let path = &self.0[of].path;
        self.0.iter().position(|module| {
            module.path.split_last().is_some_and(|(last, parent)| last == name && parent == path)
        })
    }
}

impl Module {
    /// Its name as a path: `crate`, or `trie::node`.
    #[must_use]
    pub fn name(&self) -> String {
        if self.path.is_empty() { "crate".to_owned() } else { self.path.join("::") }
    }
}

/// Where the trees of the crate at `home` begin: its library and its program.
pub fn doors(home: &Path) -> impl Iterator<Item = PathBuf> {
    DOORS.map(|door| home.join(door)).into_iter().filter(|door| door.exists())
}

/// The file of the module `inside` that `file` declares.
fn home(file: &Path, inside: &[String], attributes: &[Attribute]) -> PathBuf {
    let dir = file.parent().unwrap_or(file);
    if let Some(named) = attributes.iter().find_map(path_attribute) {
        return dir.join(named);
    }
    let stem = file.file_stem().unwrap_or_default();
    let own = stem == "lib" || stem == "main" || stem == "mod";
    let dir = if own { dir.to_path_buf() } else { dir.join(stem) };
    let name = inside.last().map_or("", String::as_str);
    let flat = dir.join(format!("{name}.rs"));
    if flat.exists() { flat } else { dir.join(name).join("mod.rs") }
}

fn path_attribute(attribute: &Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    let named = pair.path.is_ident("path");
    let text = pair.value.to_token_stream().to_string();
    named.then(|| text.trim_matches('"').to_owned())
}

/// `#[test]` and `#[cfg(test)]`.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let cfg = attribute.path().is_ident("cfg").then(|| attribute.meta.to_token_stream().to_string());
        attribute.path().is_ident("test") || cfg.is_some_and(|text| text.replace(' ', "") == "cfg(test)")
    })
}

/// The attributes of an item.
#[must_use]
pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn attributes_inside(item: &ImplItem) -> &[Attribute] {
    match item {
        ImplItem::Fn(item) => &item.attrs,
        ImplItem::Const(item) => &item.attrs,
        _ => &[],
    }
}

/// The names that a `use` brings in, each with the path that it stands for. A glob is named `*`.
#[must_use]
pub fn names_of(tree: &UseTree) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    collect(tree, &mut Vec::new(), &mut found);
    found
}

fn collect(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
    let mut push = |name: String, last: String, before: &[String]| {
        let own = last == "self";
        let path = if own { before.to_vec() } else { [before, &[last]].concat() };
        let name = if own && name == "self" { path.last().cloned().unwrap_or(name) } else { name };
        found.push((name, path));
    };
    match tree {
        UseTree::Path(step) => {
            before.push(step.ident.to_string());
            collect(&step.tree, before, found);
            before.pop();
        }
        UseTree::Name(name) => push(name.ident.to_string(), name.ident.to_string(), before),
        UseTree::Rename(name) => push(name.rename.to_string(), name.ident.to_string(), before),
        UseTree::Glob(_) => found.push(("*".to_owned(), before.clone())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| collect(tree, before, found)),
    }
}
