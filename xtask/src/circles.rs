//! Circles of modules: modules of one crate that import each other, directly or through others.

use crate::bounds::{CIRCLE_MODULES_MAX, CIRCLES, compare};
use crate::modules::{Modules, doors, names_of};
use crate::rooms;
use crate::tokens::Counts;
use std::collections::BTreeSet;
use std::path::Path;
use syn::{Item, Visibility};

/// Checks all crates: a circle has at most [`CIRCLE_MODULES_MAX`] modules, or as many as it is bound to.
///
/// # Errors
/// A source that cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for room in rooms::crates(root) {
        let mut found = Vec::new();
        for door in doors(&root.join("crates").join(&room)) {
            found.extend(
                of(&Modules::read(&door)?).into_iter().filter(|circle| circle.len() > CIRCLE_MODULES_MAX),
            );
        }
        let sizes: Vec<_> = found.iter().map(Vec::len).collect();
        let bound = CIRCLES.iter().find(|(name, _)| *name == room).map_or(&[][..], |(_, sizes)| sizes);
        if let Some(fault) = compare(&format!("crates/{room}: circles of modules"), &sizes, bound) {
            let modules: Vec<_> = found.iter().map(|circle| circle.join(" ")).collect();
            wrong.push(format!("{fault}; in them: {}", modules.join(" | ")));
        }
    }
    Ok(wrong)
}

/// The circles of a crate, the largest first, each as the names of its modules.
#[must_use]
pub fn of(modules: &Modules) -> Vec<Vec<String>> {
    let uses: Vec<_> = (0..modules.0.len()).map(|index| imported(modules, index)).collect();
    let reached: Vec<_> = (0..uses.len()).map(|start| reach(&uses, start)).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for start in 0..uses.len() {
        let together = |other: &usize| reached[*other].contains(&start);
        let circle: Vec<_> = reached[start].iter().copied().filter(together).collect();
        if circle.len() > 1 && seen.insert(circle.clone()) {
            circles.push(circle.into_iter().map(|index| modules.0[index].name()).collect::<Vec<_>>());
        }
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// The modules that the module at `index` names. What it only passes on by `pub use` it does not use.
fn imported(modules: &Modules, index: usize) -> BTreeSet<usize> {
    let mut paths = Vec::new();
    for item in &modules.0[index].items {
        match item {
            Item::Use(import) if matches!(import.vis, Visibility::Inherited) => {
                paths.extend(names_of(&import.tree).into_iter().map(|(_, path)| path));
            }
            Item::Use(_) => {}
            _ => paths.extend(named(item)),
        }
    }
    let found = paths.iter().filter_map(|path| modules.resolve(index, path));
    found.filter(|found| *found != index).collect()
}

fn named(item: &Item) -> Vec<Vec<String>> {
    let mut counts = Counts::default();
    counts.read(quote::ToTokens::to_token_stream(item));
    counts.paths
}

/// All that can be reached from `start`.
fn reach(uses: &[BTreeSet<usize>], start: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![start];
    while let Some(at) = waiting.pop() {
        for next in &uses[at] {
            if found.insert(*next) {
                waiting.push(*next);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_through_what_is_passed_on_and_paths_in_code() {
        let modules = Modules::of_text(
            "pub use b::B;
             mod a { use crate::B; pub struct A; #[cfg(test)] mod tests { use crate::c::C; } }
             mod b { pub struct B; fn f() { g(crate::a::A) } }
             mod c { use crate::a::A; pub struct C; }",
        );
        assert_eq!(of(&modules), [["a", "b"]]);
    }
}
