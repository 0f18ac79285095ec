//! Which devices are checked.

use nvmed_stack::{DeviceSpec, Open, ServedDevice};
use nvmed_vfio_user::Stop;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// Names devices; what they hold is destroyed.
const VARIABLE: &str = "NVMED_TEST_DEVICES";

/// The devices, and the directory that is removed with them.
pub struct Devices {
    pub list: Vec<String>,
    // Dropped before the directory that their sockets are in.
    _served: Vec<Served>,
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

/// A device that a thread of ours serves over vfio-user.
struct Served {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new(device: &str, socket: &Path) -> Self {
        let spec = DeviceSpec::parse(device).expect("a device");
        let open = Open::Existing { locked_by_run: false };
        let mut served = ServedDevice::open(&spec, open, socket).expect("a served device");
        let stop = served.stop();
        let thread = std::thread::spawn(move || served.run().expect("clients come and go"));
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the server panicked");
    }
}

/// The devices that the environment names, or the default list.
pub fn all() -> Devices {
    if let Ok(named) = std::env::var(VARIABLE) {
        let list = named.split_whitespace().map(str::to_owned).collect();
        return Devices { list, _served: Vec::new(), _scratch: None };
    }
    let base = std::env::temp_dir();
    let scratch = Scratch::new(&base.display().to_string());
    let image = |name: &str, options: &str| format!("{}?size=64M{options}", scratch.0.join(name).display());
    let socket = |name: &str| scratch.0.join(name);
    let served = vec![
        Served::new("virtual:?media=dram,size=64M", &socket("inline.sock")),
        Served::new("virtual:?media=dram,size=64M,lba=4096,clock=threaded", &socket("threaded.sock")),
    ];
    let list = vec![
        format!("vfio-user:{}", socket("inline.sock").display()),
        format!("vfio-user:{}", socket("threaded.sock").display()),
        "virtual:?media=dram,size=64M".to_owned(),
        "virtual:?media=dram,size=64M,lba=4096".to_owned(),
        "virtual:?media=dram,size=64M,clock=threaded".to_owned(),
        // Requests that take time, so that many are outstanding.
        "virtual:?media=dram,size=64M,latency=30us,write_cache=volatile".to_owned(),
        "virtual:?media=dram,size=64M,clock=virtual,latency=20us,bandwidth=1G".to_owned(),
        format!("virtual:{}", image("file.img", "")),
        format!("virtual:{}", image("threaded.img", ",lba=4096,clock=threaded")),
        format!("uring:{}", image("direct.img", "")),
        format!("uring:{}", image("blocks.img", ",lba=4096")),
        format!("uring:{}", image("buffered.img", ",direct=off")),
        format!("uring:{}", image("calls.img", ",calls=on")),
        "nvm:?size=64M".to_owned(),
        format!("nvm:{}", image("memory.img", "")),
        format!("nvm:{}", image("process.img", ",flush=process,lba=4096")),
        format!("nvm:{}", image("flash.img", ",flush=process,profile=cxl-flash,buffer=256K")),
        "nvm:?size=64M,profile=nand,buffer=1M".to_owned(),
    ];
    Devices { list, _served: served, _scratch: Some(scratch) }
}
