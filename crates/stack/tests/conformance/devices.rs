//! Which devices are checked.

use std::path::PathBuf;

/// Names devices; what they hold is destroyed.
const VARIABLE: &str = "NVMED_TEST_DEVICES";

/// The devices, and the directory that is removed with them.
pub struct Devices {
    pub list: Vec<String>,
    _scratch: Option<Scratch>,
}

/// A directory of this process.
struct Scratch(PathBuf);

impl Scratch {
    fn new(base: &str) -> Self {
        let path = PathBuf::from(base).join(format!("nvmed-conformance-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory for images");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The devices that the environment names, or the default list.
pub fn all() -> Devices {
    if let Ok(named) = std::env::var(VARIABLE) {
        return Devices { list: named.split_whitespace().map(str::to_owned).collect(), _scratch: None };
    }
    let base = std::env::temp_dir();
    let scratch = Scratch::new(&base.display().to_string());
    let image = |name: &str, options: &str| format!("{}?size=64M{options}", scratch.0.join(name).display());
    let list = vec![
        "virtual:?media=dram,size=64M".to_owned(),
        "virtual:?media=dram,size=64M,lba=4096".to_owned(),
        "virtual:?media=dram,size=64M,clock=threaded".to_owned(),
        "virtual:?media=dram,size=64M,clock=virtual,latency=20us,bandwidth=1G".to_owned(),
        format!("virtual:{}", image("file.img", "")),
        format!("virtual:{}", image("threaded.img", ",lba=4096,clock=threaded")),
        format!("uring:{}", image("direct.img", "")),
        format!("uring:{}", image("blocks.img", ",lba=4096")),
        format!("uring:{}", image("buffered.img", ",direct=off")),
    ];
    Devices { list, _scratch: Some(scratch) }
}
