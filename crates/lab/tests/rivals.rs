//! The kernel's paths do what they are timed for: every block is written, and what cannot be read is an error.

use nvmed_lab::rival::KernelInterface;
use nvmed_lab::{Load, Pattern};
use std::path::Path;

const BYTES: u64 = 1 << 20;

#[test]
fn each_way_moves_every_block_and_notices_a_short_one() {
    for interface in KernelInterface::ALL {
        for depth in [1, 32] {
            let name = format!("rival-{}-{interface:?}-{depth}", std::process::id());
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
            std::fs::write(&path, vec![0; BYTES as usize]).unwrap();
            let load =
                Load { pattern: Pattern::WRITE, block_bytes: 4096, depth, offset: 0, bytes: BYTES, seed: 3 };
            let mut writer = match interface.prepare(&path, &load) {
                Ok(writer) => writer,
                Err(error) => {
                    println!("SKIPPED: {}: {error}", interface.name());
                    std::fs::remove_file(&path).unwrap();
                    continue;
                }
            };
            writer.run(load.blocks()).unwrap();
            let written = std::fs::read(&path).unwrap();
            let blank = written.chunks(4096).filter(|block| block.iter().all(|&byte| byte == 0)).count();
            assert_eq!((blank, written.len()), (0, BYTES as usize), "{} at depth {depth}", interface.name());
            let mut reader = interface.prepare(&path, &Load { pattern: Pattern::READ, ..load }).unwrap();
            reader.run(load.blocks() * 2).unwrap();
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(BYTES / 2).unwrap();
            reader.run(load.blocks()).expect_err("half of the file is gone");
            std::fs::remove_file(&path).unwrap();
        }
    }
}
