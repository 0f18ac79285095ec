//! `nvmed identify` and `nvmed smart` tell what the device says, and say so when there is nobody to ask.

use crate::scratch::Scratch;

#[test]
fn a_controller_is_asked() {
    let scratch = Scratch::with_device("64M");
    let page = scratch.ok(["identify", "d.img"]);
    for words in
        ["nvmed virtual controller", "NVMe 1.", "write zeroes", "131072 LBAs of 512 bytes", "(in use)"]
    {
        assert!(page.contains(words), "no {words:?} in {page}");
    }
    let line = scratch.ok(["identify", "--json", "virtual:?media=dram,size=4M,lba=4096"]);
    assert!(line.contains("\"lba_bytes\":4096") && line.contains("\"lba_count\":1024"), "{line}");
    assert!(line.contains("\"identify\":true") && line.ends_with("}\n"), "{line}");
}

#[test]
fn the_health_log_counts_what_was_done() {
    let scratch = Scratch::with_device("64M");
    let page = scratch.ok(["smart", "d.img"]);
    assert!(page.contains("no warning"), "{page}");
    let line = scratch.ok(["smart", "--json", "d.img"]);
    assert!(line.contains("\"critical_warning\":0") && line.contains("\"warnings\":[]"), "{line}");
}

#[test]
fn an_engine_without_a_controller_says_what_it_knows() {
    let scratch = Scratch::new();
    scratch.file("plain.img", vec![0; 1 << 20]);
    let page = scratch.ok(["identify", "uring:plain.img?direct=off"]);
    assert!(page.contains("none to ask") && page.contains("1.0 MiB"), "{page}");
    scratch.fails(["smart", "uring:plain.img?direct=off"], 1, "not offered by engine uring");
    scratch.fails(["identify", "missing.img"], 4, "missing.img");
    scratch.fails(["smart", "warp:x"], 2, "unknown engine `warp`");
}
