//! Merges against a `BTreeMap`: after each step, however small, the tree holds the changes up to where it
//! stopped, and nothing else; every block is referred to once.

use crate::delta::{Delta, Direction};
use crate::disk::Disk;
use crate::layout::{Layout, TreeIndex};
use crate::leaf::{Builder, EntryKind};
use crate::merge::Merge;
use crate::node::{self, Child, Node, NodeAddress};
use crate::nodes::Nodes;
use crate::reference::{LEVEL_MAX, Reference, Root};
use crate::space::Space;
use crate::stream::Sequence;
use crate::superblock::Superblock;
use crate::tree::Tree;
use crate::{KvError, MemoryMedium, value};
use core::ops::Bound;
use nvmed_units::Block;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

struct Bench {
    disk: Disk,
    nodes: Nodes,
    space: Space,
    superblock: Superblock,
    model: Model,
}

#[derive(Clone, Debug)]
enum Change {
    Put(Vec<u8>, usize),
    Delete(Vec<u8>),
    Erase(Vec<u8>, Vec<u8>),
}

impl Bench {
    fn new(blocks: u64) -> Self {
        let layout = Layout::plan(blocks, Some(64)).unwrap();
        let superblock = Superblock::empty(5, layout);
        Self {
            disk: Disk::new(Arc::new(MemoryMedium::new(blocks))),
            nodes: Nodes::new(5, layout, 1 << 20),
            space: Space::new(&superblock),
            superblock,
            model: Model::new(),
        }
    }

    fn tree(&self) -> Tree<'_> {
        Tree { disk: &self.disk, nodes: &self.nodes, root: self.superblock.root }
    }

    /// Merges `changes` in steps of `budget` blocks, checking after each. Answers the steps.
    fn merge(&mut self, changes: &[Change], budget: u64) -> usize {
        let mut delta = Delta::new();
        let mut after = self.model.clone();
        for (n, change) in changes.iter().enumerate() {
            match change {
                Change::Put(key, len) => {
                    let value: Vec<u8> = (0..*len).map(|at| (at / 7 + n) as u8).collect();
                    delta.set(key, Some(&value), Sequence(1), Sequence(0));
                    after.insert(key.clone(), value);
                }
                Change::Delete(key) => {
                    delta.set(key, None, Sequence(1), Sequence(0));
                    after.remove(key);
                }
                Change::Erase(from, to) => {
                    delta.erase(from, to, Sequence(1), Sequence(0));
                    after.retain(|key, _| key < from || key >= to);
                }
            }
        }
        let (mut from, mut steps) = (Vec::new(), 0);
        loop {
            let next = self.step(&delta, &from, budget);
            steps += 1;
            let Some(next) = next else {
                break;
            };
            assert!(next > from, "a step that gets nowhere");
            let (done, rest) = (after.range(..next.clone()), self.model.range(next.clone()..));
            let now = done.chain(rest).map(|(key, value)| (key.clone(), value.clone())).collect();
            self.model = now;
            self.check();
            from = next;
        }
        self.model = after;
        self.check();
        steps
    }

    fn step(&mut self, delta: &Delta, from: &[u8], budget: u64) -> Option<Vec<u8>> {
        let disk = self.disk.metered();
        let old = self.superblock.clone();
        let mut merge = Merge::new(&disk, &self.nodes, &mut self.space, &old, delta, from, budget);
        let root = merge.run().unwrap();
        let at = merge.at.take();
        assert!(merge.moved);
        let first = merge.written;
        assert!(disk.spent() <= budget.max(60), "{} blocks of {budget}, {first} written", disk.spent());
        let mut new = old.clone();
        new.root = root;
        new.generation += 1;
        self.space.write(&self.disk, &old, &mut new).unwrap();
        let freed = self.space.settle(&new);
        for &block in &freed {
            self.nodes.forget(new.layout.tree_block(block));
        }
        self.space.release(&freed);
        self.superblock = new;
        at
    }

    fn check(&mut self) {
        let tree = self.tree();
        let mut value = Vec::new();
        let mut up = tree.seek(Bound::Unbounded, Direction::Ascending).unwrap();
        for (key, want) in &self.model {
            assert_eq!(up.key(), Some(key.as_slice()));
            value.clear();
            up.value(&mut value).unwrap();
            assert!(value == *want, "the value of {key:?}");
            up.step(Direction::Ascending).unwrap();
        }
        assert_eq!(up.key(), None);
        for key in self.model.keys().rev() {
            up.step(Direction::Descending).unwrap();
            assert_eq!(up.key(), Some(key.as_slice()), "the way back");
        }
        let used = self.blocks();
        assert_eq!(used.len() as u64, self.superblock.used);
        for &block in &used {
            assert!(self.space.is_used(&self.disk, &self.superblock, block).unwrap());
        }
        assert_eq!(self.space.count_used(&self.disk, &self.superblock), Ok(self.superblock.used));
    }

    /// Looks at a key as every call can, and at its neighbours.
    fn probe(&self, key: &[u8]) {
        let (tree, mut value) = (self.tree(), Vec::new());
        assert_eq!(tree.get(key, &mut value).unwrap(), self.model.contains_key(key), "{key:?}");
        assert!(self.model.get(key).is_none_or(|want| *want == value));
        for bound in [Bound::Included(key), Bound::Excluded(key)] {
            let up = self.model.range::<[u8], _>((bound, Bound::Unbounded)).next();
            let down = self.model.range::<[u8], _>((Bound::Unbounded, bound)).next_back();
            let mut at = tree.seek(bound, Direction::Ascending).unwrap();
            assert_eq!(at.key(), up.map(|(key, _)| key.as_slice()), "up from {bound:?}");
            at.step(Direction::Descending).unwrap();
            let before = match (up, bound) {
                (Some((up, _)), _) => self.model.range(..up.clone()).next_back(),
                (None, _) => self.model.iter().next_back(),
            };
            assert_eq!(at.key(), before.map(|(key, _)| key.as_slice()), "and back from {bound:?}");
            let at = tree.seek(bound, Direction::Descending).unwrap();
            assert_eq!(at.key(), down.map(|(key, _)| key.as_slice()), "down from {bound:?}");
        }
    }

    /// All blocks of the tree; each once.
    fn blocks(&self) -> BTreeSet<Block> {
        let mut all = BTreeSet::new();
        let mut note = |block| assert!(all.insert(block), "two references to block {block}");
        let mut open: Vec<Root> = self.superblock.root.into_iter().collect();
        while let Some(root) = open.pop() {
            note(root.node.block);
            let node = self.nodes.read(&self.disk, &root.node, root.level).unwrap();
            for index in 0..node.len() {
                if root.level > 0 {
                    open.push(Root { node: node.child(index), level: root.level - 1 });
                    continue;
                }
                match node.kind(index) {
                    EntryKind::Inline => {}
                    EntryKind::Long => value::parts(node.payload(index)).for_each(|part| note(part.block)),
                    EntryKind::Subtree => open.push(node.subtree(index)),
                }
            }
        }
        all
    }

    /// Entries that are subtrees, in all leaves.
    fn subtrees(&self) -> usize {
        let mut count = 0;
        let mut open: Vec<Root> = self.superblock.root.into_iter().collect();
        while let Some(root) = open.pop() {
            let node = self.nodes.read(&self.disk, &root.node, root.level).unwrap();
            for index in 0..node.len() {
                if root.level > 0 {
                    open.push(Root { node: node.child(index), level: root.level - 1 });
                } else if node.kind(index) == EntryKind::Subtree {
                    count += 1;
                    open.push(node.subtree(index));
                }
            }
        }
        count
    }
}

/// Keys that meet: short ones, zeroes of all lengths, long ones that differ late, paths, and whatever.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        2 => prop::collection::vec(0u8..2, 0..12),
        2 => (0usize..=1024).prop_map(|len| vec![0; len]),
        2 => (0usize..40).prop_map(|len| vec![0; len]),
        2 => (prop::sample::select(vec![8usize, 9, 15, 16, 17, 100, 1000]), 0u16..300)
            .prop_map(|(len, n)| [&vec![7; len][..], &n.to_be_bytes()].concat()),
        3 => (0u8..4, 0u8..30, 0u16..100).prop_map(|(a, b, n)| format!("directory-{a}/sub-{b}/file-{n}").into_bytes()),
        1 => (0u8..3, 0usize..=1024).prop_map(|(n, len)| vec![n; len]),
        2 => prop::collection::vec(any::<u8>(), 0..40),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let len = prop_oneof![8 => 0usize..150, 2 => 900usize..1100, 1 => 4000usize..=32768];
    prop_oneof![
        12 => (key(), len).prop_map(|(key, len)| Change::Put(key, len)),
        4 => key().prop_map(Change::Delete),
        1 => (key(), key()).prop_map(|(a, b)| Change::Erase(a.clone().min(b.clone()), a.max(b))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_tree_is_an_ordered_map_after_every_step(
        batches in prop::collection::vec(
            (prop::collection::vec(change(), 1..200), prop_oneof![Just(u64::MAX), 60u64..200]), 1..8),
        probes in prop::collection::vec(key(), 20),
    ) {
        let mut bench = Bench::new(20_000);
        for (changes, budget) in batches {
            bench.merge(&changes, budget);
            for probe in &probes {
                bench.probe(probe);
            }
            let some: Vec<_> = bench.model.keys().step_by(7).cloned().collect();
            for key in some {
                bench.probe(&key);
                bench.probe(&[&key[..], &[0]].concat());
            }
        }
    }
}

fn file(directory: u32, n: u32) -> Vec<u8> {
    format!("projects/{directory:03}-of-the-projects/{n:05}.source").into_bytes()
}

#[test]
fn a_directory_that_grows_becomes_a_tree_and_goes_back_when_it_shrinks() {
    let mut bench = Bench::new(20_000);
    let some = |count: u32| (0..count).map(|n| Change::Put(file(n % 8, n / 8), 80)).collect::<Vec<_>>();
    bench.merge(&some(24), u64::MAX);
    assert_eq!(bench.subtrees(), 0, "what fits a leaf stays in it");
    bench.merge(&some(8 * 300), 200);
    assert!(bench.subtrees() >= 8, "{} trees", bench.subtrees());
    let gone: Vec<_> =
        (0..8 * 300).filter(|n| n / 8 >= 2).map(|n| Change::Delete(file(n % 8, n / 8))).collect();
    bench.merge(&gone, u64::MAX);
    for n in 0..8 {
        // A tree goes back when it is changed the next time.
        bench.merge(&[Change::Put(file(n, 0), 81)], u64::MAX);
    }
    assert_eq!((bench.model.len(), bench.subtrees()), (16, 0));
    assert!(bench.superblock.used <= 2, "{} blocks for 16 files", bench.superblock.used);
    bench.merge(&[Change::Erase(vec![], vec![0xff])], u64::MAX);
    assert_eq!((bench.superblock.used, bench.superblock.root), (0, None));
}

#[test]
fn a_range_is_erased_in_bounded_steps_through_nested_trees() {
    let mut bench = Bench::new(20_000);
    let all: Vec<_> = (0..20_000).map(|n| Change::Put(file(n % 40, n / 40), 100)).collect();
    bench.merge(&all, u64::MAX);
    // Keys that are put after the range was erased: what one step puts, the next must not erase.
    let again = (0..2000).map(|n| Change::Put(file(5 + n / 100, n % 100), 90));
    let changes: Vec<_> = [Change::Erase(file(3, 7), file(35, 9))].into_iter().chain(again).collect();
    let steps = bench.merge(&changes, 100);
    assert!(steps > 5, "{steps} steps of at most 100 blocks");
    assert_eq!(bench.model.len(), 20_000 - (500 - 7) - 31 * 500 - 9 + 2000);
}

#[test]
fn leaves_are_full_after_sorted_inserts_and_nearly_after_random_ones() {
    let fill = |order: &dyn Fn(u32) -> u32, each: u32| {
        let mut bench = Bench::new(20_000);
        for start in (0..30_000).step_by(each as usize) {
            let changes: Vec<_> = (start..start + each)
                .map(|n| Change::Put([&order(n).to_be_bytes()[..], b" some name"].concat(), 60))
                .collect();
            let mut delta = Delta::new();
            for change in &changes {
                if let Change::Put(key, len) = change {
                    delta.set(key, Some(&vec![1; *len]), Sequence(1), Sequence(0));
                }
            }
            assert_eq!(bench.step(&delta, b"", u64::MAX), None);
        }
        let bytes = bench.superblock.used * 4064;
        // Slot, three counts, the rest of the key, the value.
        f64::from(30_000 * (2 + 4 + 14 + 60)) / bytes as f64
    };
    let sorted = fill(&|n| n, 1000);
    assert!(sorted > 0.95, "{sorted}");
    for each in [300, 10_000] {
        let random = fill(&|n| n.wrapping_mul(0x9e37_79b1) ^ (n >> 3), each);
        assert!(random > 0.7, "{random}, {each} at a time");
    }
}

#[test]
fn a_block_that_is_lost_misplaced_or_old_is_found_by_who_refers_to_it() {
    let mut bench = Bench::new(20_000);
    let put = |from: u32, len: usize| (from..from + 400).map(move |n| Change::Put(file(n % 3, n / 3), len));
    bench.merge(&put(0, 90).chain(put(400, 2000)).collect::<Vec<_>>(), u64::MAX);
    let blocks: Vec<_> = bench.blocks().into_iter().collect();
    let mut kinds = BTreeSet::new();
    for (at, &block) in blocks.iter().enumerate() {
        let mut good = [0; 4096];
        bench.disk.read(block, &mut good).unwrap();
        let mut other = [0; 4096];
        bench.disk.read(blocks[(at + 1) % blocks.len()], &mut other).unwrap();
        for bad in [[0; 4096], other] {
            bench.disk.write(crate::disk::Structure::Node, block, &bad, false).unwrap();
            let nodes = Nodes::new(5, bench.superblock.layout, 0);
            let tree = Tree { disk: &bench.disk, nodes: &nodes, root: bench.superblock.root };
            let found = bench.model.keys().find_map(|key| tree.get(key, &mut Vec::new()).err());
            match found {
                Some(KvError::Corrupt { block: named, structure, .. }) => {
                    assert_eq!(named, block);
                    kinds.insert(structure);
                }
                other => panic!("block {block} went unnoticed: {other:?}"),
            }
        }
        bench.disk.write(crate::disk::Structure::Node, block, &good, false).unwrap();
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["tree node", "value block"]);
}

#[test]
fn trees_nested_deeply_do_not_overflow_a_stack() {
    // In each tree of a byte more, nodes of one child at all levels: one thread's stack has no room for the path.
    const NESTED: usize = 1024;
    let mut bench = Bench::new(24_000);
    let mut blocks = bench.superblock.layout.tree_block(TreeIndex(0)).onward();
    let mut put = |make: &dyn Fn(NodeAddress) -> Node| {
        let block = blocks.next().unwrap();
        let node = make(NodeAddress { identity: 5, block, generation: 0 });
        bench.disk.write(crate::disk::Structure::Node, block, &*node.bytes, false).unwrap();
        Reference { block, generation: 0, crc: node.crc() }
    };
    let leaf = |kind: EntryKind, payload: &[u8], address: NodeAddress| {
        let mut builder = Builder::new();
        assert!(builder.push(b"p", kind, payload, 0));
        builder.finish(address)
    };
    let mut node = put(&|address| leaf(EntryKind::Inline, b"value", address));
    let mut level = 0;
    for _ in 1..NESTED {
        let root = Root { node, level };
        node = put(&|address| leaf(EntryKind::Subtree, &root.encode(), address));
        for above in 1..=LEVEL_MAX {
            node = put(&|address| node::inner(&[Child { chunk: 0, node }], above, address));
        }
        level = LEVEL_MAX;
    }
    bench.superblock.root = Some(Root { node, level });
    let key = [b'p'; NESTED];
    assert_eq!(bench.tree().get(&key, &mut Vec::new()), Ok(true));
    let mut delta = Delta::new();
    delta.set(&key, None, Sequence(1), Sequence(0));
    let Bench { disk, nodes, space, superblock, .. } = &mut bench;
    let outcome = Merge::new(disk, nodes, space, superblock, &delta, &[], u64::MAX).run();
    // It stops where free blocks do not suffice for the path, thousands of nodes down.
    assert!(outcome.is_ok(), "{outcome:?}");
}
