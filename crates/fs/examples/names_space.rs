//! Bytes of metadata a file: `cargo run --release -p nvmed-fs --example names_space [files] [zone bound]`.
//!
//! Files of 60-byte paths in four levels of directories, one extent each by `fallocate`, made in the order of a
//! copy; then everything is written and the metadata store's tree measured, whole blocks.

#[path = "../tests/it/support/mod.rs"]
mod support;

use nvmed_fs::*;

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let count = arguments.next().unwrap_or(100_000);
    let bound = arguments.next().map_or(ZONE_BOUND, |bound| bound as u32);
    let disk = support::Disk::new((count * (1 << 13)).max(1 << 30));
    let files = disk.format_zones(bound).mount_with(MountOptions::default(), 64 << 20);
    let (root, who) = (files.root(), &Credentials::ROOT);
    let flags = OpenFlags::WRITE.with(OpenFlags::CREATE);
    // 60 bytes: 12 + 1 + 12 + 1 + 12 + 1 + 21.
    for n in 0..count {
        let [a, b, c] = [n / 100_000, n / 10_000 % 10, n / 100 % 100];
        let directories = [format!("top-dir-{a:04}"), format!("mid-dir-{b:04}"), format!("low-dir-{c:04}")];
        if n % 100 == 0 {
            for depth in 1..=3 {
                match files.mkdir(&root, directories[..depth].join("/").as_bytes(), 0o755, who) {
                    Ok(()) | Err(FsError::Exists) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let path = format!("{}/some-file-name-{n:06}", directories.join("/"));
        assert_eq!(path.len(), 60);
        let file = files.open(&root, path.as_bytes(), flags, 0o644, who).expect("create");
        file.fallocate(Allocate::default(), 0, 4096).expect("fallocate");
    }
    files.unmount().expect("unmount");
    let stats = files.store_stats();
    let bytes = stats.tree_blocks_used * support::BLOCK as u64;
    println!(
        "{count} files, zone bound {bound}: {:.1} bytes of metadata a file",
        bytes as f64 / count as f64
    );
}
