//! What the source declares, by its owner: `Cache::write`, `Fault::Reset`, `Options::log_blocks`, `nvmed_sys::door`.

use crate::modules::{Modules, doors};
use crate::rooms;
use crate::sources::code_spans;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::{Fields, ImplItem, Item, TraitItem, Type};

/// Names of the house that are not Rust's, which documents write in the same manner.
const FOREIGN: [(&str, &str); 4] = [
    ("link::link_count_max", "a test of pjdfstest"),
    ("truncate::etxtbsy", "a test of pjdfstest"),
    ("rmdir::ebusy", "a test of pjdfstest"),
    ("open::etxtbsy", "a test of pjdfstest"),
];

/// Owner and name.
type Pair = (String, String);

/// All declarations outside tests.
pub struct Names {
    files: BTreeMap<PathBuf, BTreeSet<Pair>>,
    all: BTreeSet<Pair>,
}

impl Names {
    /// Reads every crate below `root`, and the chores.
    ///
    /// # Errors
    /// A source that cannot be read.
    pub fn of(root: &Path) -> Result<Self, String> {
        let mut found = Self { files: BTreeMap::new(), all: BTreeSet::new() };
        let homes = rooms::crates(root).into_iter().map(|room| root.join("crates").join(room));
        for home in homes.chain([root.join("xtask")]) {
            let room = home.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
            for door in doors(&home) {
                found.add(&room, &Modules::read(&door)?);
            }
        }
        Ok(found)
    }

    fn add(&mut self, room: &str, modules: &Modules) {
        let doors = [room.to_owned(), format!("nvmed_{room}")];
        for module in &modules.0 {
            let mut pairs = BTreeSet::new();
            let own = module.path.last().map_or(room, String::as_str);
            for item in &module.items {
                declared(item, own, &mut pairs);
            }
            let here: Vec<_> =
                pairs.iter().filter(|(owner, _)| owner == own).map(|(_, name)| name.clone()).collect();
            for door in &doors {
                self.all.extend(here.iter().map(|name| (door.clone(), name.clone())));
                self.all.extend(module.path.last().map(|name| (door.clone(), name.clone())));
            }
            if let [.., above, name] = module.path.as_slice() {
                self.all.insert((above.clone(), name.clone()));
            }
            self.all.extend(pairs.iter().cloned());
            let file = module.file.canonicalize().unwrap_or_else(|_| module.file.clone());
            self.files.entry(file).or_default().extend(pairs);
        }
    }

    /// Whether `owner::name` is declared somewhere.
    #[must_use]
    pub fn has(&self, owner: &str, name: &str) -> bool {
        self.all.contains(&(owner.to_owned(), name.to_owned()))
    }

    /// Whether `file` declares `name`, as its own or of `owner`.
    #[must_use]
    pub fn file_has(&self, file: &Path, owner: Option<&str>, name: &str) -> bool {
        let pairs = self.files.get(file).into_iter().flatten();
        pairs.into_iter().any(|(found, inside)| inside == name && owner.is_none_or(|owner| owner == found))
    }

    /// The names written as `owner::name` in the text of a document that do not exist, with their lines.
    #[must_use]
    pub fn missing(&self, text: &str) -> Vec<(usize, String)> {
        let paths = code_spans(text).filter_map(|(line, code)| Some((line, code, last_two(code)?)));
        let known = |path: &str| FOREIGN.iter().any(|(known, _)| *known == path);
        let missing = paths.filter(|(_, path, (owner, name))| !known(path) && !self.has(owner, name));
        missing.map(|(line, _, (owner, name))| (line, format!("{owner}::{name}"))).collect()
    }
}

/// `owner` and `name` of `a::owner::name` or `a::owner::name(…)`.
#[must_use]
pub fn last_two(code: &str) -> Option<(&str, &str)> {
    let path = code.split('(').next().unwrap_or(code);
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let (before, name) = path.rsplit_once("::").filter(|_| path.chars().all(word))?;
    let owner = before.rsplit("::").next().unwrap_or(before);
    (!owner.is_empty() && !name.is_empty()).then_some((owner, name))
}

/// What `item` declares, in the module `own`.
fn declared(item: &Item, own: &str, found: &mut BTreeSet<Pair>) {
    let mut add = |owner: &str, name: String| _ = found.insert((owner.to_owned(), name));
    match item {
        Item::Fn(item) => add(own, item.sig.ident.to_string()),
        Item::Const(item) => add(own, item.ident.to_string()),
        Item::Static(item) => add(own, item.ident.to_string()),
        Item::Type(item) => add(own, item.ident.to_string()),
        Item::Struct(item) => {
            add(own, item.ident.to_string());
            names_of_fields(&item.fields).for_each(|name| add(&item.ident.to_string(), name));
        }
        Item::Enum(item) => {
            add(own, item.ident.to_string());
            item.variants.iter().for_each(|one| add(&item.ident.to_string(), one.ident.to_string()));
        }
        Item::Trait(item) => {
            add(own, item.ident.to_string());
            let names = item.items.iter().filter_map(name_in_trait);
            names.for_each(|name| add(&item.ident.to_string(), name));
        }
        Item::Impl(block) => {
            let owner = owner_of(&block.self_ty);
            block.items.iter().filter_map(name_in_impl).for_each(|name| add(&owner, name));
        }
        Item::Macro(item) => {
            item.ident.iter().for_each(|name| add(own, name.to_string()));
            defined(item.mac.tokens.clone()).into_iter().for_each(|name| add(own, name));
        }
        _ => {}
    }
}

fn names_of_fields(fields: &Fields) -> impl Iterator<Item = String> {
    fields.iter().filter_map(|field| field.ident.as_ref().map(ToString::to_string))
}

fn name_in_trait(item: &TraitItem) -> Option<String> {
    match item {
        TraitItem::Fn(item) => Some(item.sig.ident.to_string()),
        TraitItem::Const(item) => Some(item.ident.to_string()),
        TraitItem::Type(item) => Some(item.ident.to_string()),
        _ => None,
    }
}

fn name_in_impl(item: &ImplItem) -> Option<String> {
    match item {
        ImplItem::Fn(item) => Some(item.sig.ident.to_string()),
        ImplItem::Const(item) => Some(item.ident.to_string()),
        _ => None,
    }
}

/// The name of the type of an `impl`.
fn owner_of(ty: &Type) -> String {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default(),
        Type::Reference(reference) => owner_of(&reference.elem),
        _ => String::new(),
    }
}

/// What the arguments of a macro define: the word after `fn`, and a capital word before a colon (`Opcode: u8 {…}`).
fn defined(tokens: TokenStream) -> Vec<String> {
    let mut found = Vec::new();
    let mut before = String::new();
    for token in tokens {
        if let TokenTree::Ident(name) = &token {
            let name = name.to_string();
            if before == "fn" || name.starts_with(|c: char| c.is_ascii_uppercase()) {
                found.push(name);
            }
        }
        before = token.to_string();
    }
    found
}
