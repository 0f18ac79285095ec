//! Public names that nothing outside their crate uses: each says `pub` and means `pub(crate)`, or is not needed.
//!
//! A name is used where its word stands in the code of another crate, of a test program, or of an example or a link in
//! the documentation; a type is used too when what is used has it in its signature. The fields of a structure, the
//! variants of an enum and the functions of a trait are of one piece with it, and not looked at one by one.

use crate::modules::{Modules, attributes, names_of};
use crate::{rooms, sources};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use syn::spanned::Spanned;
use syn::{Attribute, Fields, ImplItem, Item, Visibility};

/// Libraries whose names are meant for programs that are not here.
const FOR_OTHERS: [(&str, &str); 1] = [("capi", "its functions are the names of nvmed.h and nvmedfs.h")];

/// Words of code.
type Words = BTreeSet<String>;

/// Something that says `pub`.
struct Public {
    name: String,
    /// File and line.
    place: String,
    /// What its signature mentions.
    mentions: Words,
    /// Whether something outside must be able to name it whatever the code there says.
    needed: bool,
}

/// Checks all libraries.
///
/// # Errors
/// A source that cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let words = words_of_files(root)?;
    let mut wrong = Vec::new();
    for room in rooms::crates(root) {
        let home = root.join("crates").join(&room);
        let door = home.join("src/lib.rs");
        if !door.exists() || FOR_OTHERS.iter().any(|(name, _)| *name == room) {
            continue;
        }
        let inside = sources::shown(root, &home.join("src")) + "/";
        let program = inside.clone() + "main.rs";
        let outside = words.iter().filter(|(file, _)| !file.starts_with(&inside) || **file == program);
        let mut outside: Words = outside.flat_map(|(_, words)| words.iter().cloned()).collect();
        let modules = Modules::read(&door)?;
        outside.extend(shown_to_others(&modules));
        for unused in unused(public_items(root, &modules), &outside) {
            wrong.push(format!(
                "{}: `{}` is used nowhere outside {room}: pub(crate)?",
                unused.place, unused.name
            ));
        }
    }
    Ok(wrong)
}

/// The words of each Rust file.
fn words_of_files(root: &Path) -> Result<BTreeMap<String, Words>, String> {
    let mut found = BTreeMap::new();
    for path in sources::files(root, "rs") {
        let name = sources::shown(root, &path);
        let tokens =
            sources::text(&path).parse::<TokenStream>().map_err(|error| format!("{name}: {error}"))?;
        found.insert(name, words(tokens));
    }
    Ok(found)
}

fn words(tokens: TokenStream) -> Words {
    let mut found = Words::new();
    for token in tokens {
        match token {
            TokenTree::Ident(name) => _ = found.insert(name.to_string()),
            TokenTree::Group(group) => found.extend(words(group.stream())),
            _ => {}
        }
    }
    found
}

/// What is inside a crate and is compiled outside: exported macros, and in its documentation the examples and
/// the links, which a reader follows.
fn shown_to_others(modules: &Modules) -> Words {
    let mut found = Words::new();
    for item in modules.0.iter().flat_map(|module| &module.items) {
        let exported = attributes(item).iter().any(|attribute| attribute.path().is_ident("macro_export"));
        if exported {
            found.extend(words(item.to_token_stream()));
        }
    }
    for file in modules.files() {
        let mut example = false;
        for line in sources::text(&file).lines() {
            let line = line.trim_start();
            let Some(line) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else { continue };
            if line.trim_start().starts_with("```") {
                example = !example;
            } else if example {
                found.extend(parts(line));
            } else {
                let links = line.split("[`").skip(1).filter_map(|rest| rest.split("`]").next());
                found.extend(links.flat_map(parts));
            }
        }
    }
    found
}

/// The words of a piece of text.
fn parts(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned)
}

/// What says `pub` in a crate.
fn public_items(root: &Path, modules: &Modules) -> Vec<Public> {
    let mut found = Vec::new();
    for module in &modules.0 {
        let file = sources::shown(root, &module.file);
        for item in &module.items {
            match item {
                Item::Impl(block) => found.extend(of_impl(block, &file)),
                Item::Use(import) if matches!(import.vis, Visibility::Public(_)) => {
                    found.extend(renamed(import, &file));
                }
                _ => found.extend(of_item(item, &file)),
            }
        }
    }
    found
}

fn public(name: impl ToString, place: (&str, &dyn Spanned), mentions: TokenStream, needed: bool) -> Public {
    let place = format!("{}:{}", place.0, place.1.span().start().line);
    Public { name: name.to_string(), place, mentions: words(mentions), needed }
}

/// An item that says `pub`.
fn of_item(item: &Item, file: &str) -> Option<Public> {
    let (vis, name, mentions) = match item {
        Item::Fn(item) => (&item.vis, &item.sig.ident, item.sig.to_token_stream()),
        Item::Struct(item) => (&item.vis, &item.ident, visible(&item.fields)),
        Item::Enum(item) => (&item.vis, &item.ident, item.variants.to_token_stream()),
        Item::Union(item) => (&item.vis, &item.ident, item.fields.to_token_stream()),
        Item::Trait(item) => (&item.vis, &item.ident, item.to_token_stream()),
        Item::Const(item) => (&item.vis, &item.ident, item.ty.to_token_stream()),
        Item::Static(item) => (&item.vis, &item.ident, item.ty.to_token_stream()),
        Item::Type(item) => (&item.vis, &item.ident, item.ty.to_token_stream()),
        _ => return None,
    };
    let exported = attributes(item).iter().any(exports);
    matches!(vis, Visibility::Public(_)).then(|| public(name, (file, name), mentions, exported))
}

/// The names that a `pub use` gives anew: who uses one, uses the old one.
fn renamed(import: &syn::ItemUse, file: &str) -> Vec<Public> {
    let names = names_of(&import.tree).into_iter();
    let new = names
        .filter(|(name, _)| name != "*")
        .filter_map(|(name, path)| path.last().filter(|old| **old != name).cloned().map(|old| (name, old)));
    new.map(|(name, old)| Public {
        mentions: Words::from([old]),
        ..public(name, (file, import), TokenStream::new(), false)
    })
    .collect()
}

/// `#[no_mangle]` and its like: the name is the linker's.
fn exports(attribute: &Attribute) -> bool {
    let text = attribute.to_token_stream().to_string();
    text.contains("no_mangle") || text.contains("export_name")
}

/// The types of the fields that others see.
fn visible(fields: &Fields) -> TokenStream {
    let seen = fields.iter().filter(|field| matches!(field.vis, Visibility::Public(_)));
    seen.map(|field| field.ty.to_token_stream()).collect()
}

/// The functions and constants of an `impl` that say `pub`; of a trait's, the types that it names for it.
fn of_impl(block: &syn::ItemImpl, file: &str) -> Vec<Public> {
    let mut found = Vec::new();
    for item in &block.items {
        match item {
            ImplItem::Fn(item) if matches!(item.vis, Visibility::Public(_)) => {
                let name = &item.sig.ident;
                found.push(public(
                    name,
                    (file, name),
                    item.sig.to_token_stream(),
                    item.attrs.iter().any(exports),
                ));
            }
            ImplItem::Const(item) if matches!(item.vis, Visibility::Public(_)) => {
                found.push(public(&item.ident, (file, &item.ident), item.ty.to_token_stream(), false));
            }
            ImplItem::Type(item) => {
                found.push(public(&item.ident, (file, &item.ident), item.ty.to_token_stream(), true));
            }
            _ => {}
        }
    }
    found
}

/// The items that neither a word outside nor the signature of a used one names.
fn unused(items: Vec<Public>, outside: &Words) -> Vec<Public> {
    let mut used = outside.clone();
    let mut waiting = items;
    loop {
        let (live, rest): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|item| item.needed || used.contains(&item.name));
        if live.is_empty() {
            return rest;
        }
        used.extend(live.into_iter().flat_map(|item| item.mentions));
        waiting = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_outside_or_in_a_signature_of_that_is_used() {
        let modules = Modules::of_text(
            "pub use door::of_tree as trees;
             mod door { pub struct Seen; pub(crate) struct Ours; pub fn open() -> Seen {} pub fn alone() {}
                        pub fn of_tree() {}
                        impl Seen { pub fn look(&self) {} pub fn hide(&self) {} } }
             pub const LIMIT: u32 = 1;",
        );
        let outside = Words::from(["open", "look", "trees", "LIMIT"].map(str::to_owned));
        let said = unused(public_items(Path::new("."), &modules), &outside);
        let names: Vec<_> = said.iter().map(|item| item.name.as_str()).collect();
        assert_eq!(names, ["alone", "hide"]);
    }
}
