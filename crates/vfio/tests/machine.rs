//! What is said of a machine's NVMe controllers, and what keeps them from changing hands, on a copy of the kernel's
//! files.

use nvmed_vfio::{
    Address, Function, FunctionOptions, Host, Use, VfioError, bind, fabric_controllers, functions, unbind,
};
use std::path::{Path, PathBuf};

/// A copy of the files in `machine.tree`, removed at the end.
struct Machine {
    root: PathBuf,
    host: Host,
}

impl Machine {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("nvmed-machine-{}-{name}", std::process::id()));
        for line in include_str!("machine.tree").lines().filter(|line| !line.starts_with('#')) {
            let (path, mark, value) = if let Some((path, target)) = line.split_once(" -> ") {
                (path, '>', target)
            } else if let Some((path, text)) = line.split_once(" + ") {
                (path, '+', text)
            } else {
                let (path, text) = line.split_once(" = ").unwrap_or_else(|| panic!("{line}"));
                (path, '=', text)
            };
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            match mark {
                '>' => std::os::unix::fs::symlink(value, path).expect("a link"),
                _ => {
                    let before = std::fs::read_to_string(&path).unwrap_or_default();
                    std::fs::write(path, format!("{before}{value}\n")).expect("a file");
                }
            }
        }
        let host = Host::at(&root);
        Self { root, host }
    }

    fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    fn add(&self, path: &str) {
        let path: &Path = &self.root.join(path);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        std::fs::write(path, "").expect("a file");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn at(text: &str) -> Address {
    text.parse().expect("an address")
}

#[test]
fn every_controller_is_listed_with_who_has_it_and_who_uses_it() {
    let machine = Machine::new("list");
    let all = functions(&machine.host);
    let addresses: Vec<_> = all.iter().map(|function| function.address.to_string()).collect();
    assert_eq!(addresses, ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"]);
    let first = &all[0];
    assert_eq!((first.vendor, first.device, first.group), (0x144d, 0xa808, Some(14)));
    let controller = first.controller.as_ref().expect("the kernel's");
    assert_eq!((controller.model.as_str(), controller.queues), ("Samsung SSD 970 EVO 500GB", 9));
    assert_eq!(controller.serial, "S466NX0K000000");
    let namespace = &controller.namespaces[0];
    assert_eq!((namespace.bytes, namespace.lba_bytes, namespace.nsid), (500_107_862_016, 512, 1));
    assert_eq!(namespace.generic.as_deref(), Some("ng0n1"));
    let device = |part: &str| format!("nvme0n1{part}");
    assert_eq!(
        namespace.uses,
        [
            Use::Mounted { device: device("p1"), at: "/mnt/my disk".to_owned() },
            Use::Swap { device: device("p1") },
            Use::Mounted { device: device("p2"), at: "/".to_owned() },
            Use::Holder { device: device("p3"), holder: "dm-0".to_owned() },
        ]
    );
    assert_eq!(all[1].obstacle(), None);
}

#[test]
fn a_controller_over_a_fabric_is_listed_by_the_device_that_programs_open() {
    let machine = Machine::new("fabric");
    let all = fabric_controllers(&machine.host);
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].transport.as_str(), all[0].namespaces[0].block.as_str()), ("tcp", "nvme1n1"));
}

#[test]
fn what_keeps_a_controller_from_being_bound_is_said_and_nothing_is_changed() {
    let machine = Machine::new("bind");
    for (address, want) in [
        ("0000:01:00.0", "in use: /dev/nvme0n1p1 is mounted at /mnt/my disk, /dev/nvme0n1p1 is swap space"),
        ("0000:03:00.0", "shares IOMMU group 16 with 0000:03:00.1 (snd_hda_intel)"),
        ("0000:04:00.0", "behind no IOMMU"),
        ("0000:00:1f.0", "is no NVMe controller (PCI class 0x060100)"),
        ("0000:09:00.0", "no PCI function 0000:09:00.0"),
    ] {
        let said = bind(&machine.host, at(address)).expect_err(address).to_string();
        assert!(said.contains(want), "{address}: {said}");
    }
    assert_eq!(machine.text("sys/bus/pci/devices/0000:01:00.0/driver_override"), "(null)\n");
    assert_eq!(bind(&machine.host, at("0000:02:00.0")), Ok(()), "it is there already");
}

#[test]
fn a_missing_module_is_named_before_the_kernels_driver_loses_the_controller() {
    let machine = Machine::new("module");
    std::fs::remove_file(machine.root.join("proc/swaps")).expect("it was there");
    std::fs::remove_file(machine.root.join("proc/self/mountinfo")).expect("it was there");
    std::fs::remove_dir_all(machine.root.join("sys/class/block/nvme0n1p3/holders")).expect("it was there");
    let said = bind(&machine.host, at("0000:01:00.0")).expect_err("no module").to_string();
    assert!(said.contains("run `modprobe vfio-pci`"), "{said}");
    // With the module, but a kernel that does nothing: the failure names who has it now.
    machine.add("sys/bus/pci/drivers/vfio-pci/new_id");
    machine.add("sys/bus/pci/drivers/nvme/unbind");
    machine.add("sys/bus/pci/drivers_probe");
    let link = machine.root.join("sys/bus/pci/devices/0000:01:00.0/driver");
    std::fs::remove_file(&link).expect("it was there");
    let said = bind(&machine.host, at("0000:01:00.0")).expect_err("a kernel that does nothing").to_string();
    assert!(said.contains("vfio-pci did not take 0000:01:00.0; it is back with no driver"), "{said}");
    assert_eq!(machine.text("sys/bus/pci/devices/0000:01:00.0/driver_override").lines().next(), Some(""));
}

#[test]
fn a_controller_that_a_process_has_open_is_not_taken_from_it() {
    let machine = Machine::new("unbind");
    let error = unbind(&machine.host, at("0000:02:00.0")).expect_err("it is open");
    assert_eq!(
        error.to_string().split(';').next(),
        Some("0000:02:00.0 (IOMMU group 15) is in use by qemu-system-x86 (pid 812)")
    );
    assert_eq!(unbind(&machine.host, at("0000:01:00.0")), Ok(()), "it is the kernel's");
}

#[test]
fn what_keeps_a_controller_from_being_opened_is_said() {
    let machine = Machine::new("open");
    for (address, want) in [
        ("0000:01:00.0", "is driven by `nvme`: /dev/nvme0n1p1 is mounted at"),
        ("0000:02:00.0", "dev/vfio/vfio is missing); run `modprobe vfio-pci`"),
        ("0000:03:00.0", "is driven by `nvme`; `nvmed bind 0000:03:00.0` takes it from there"),
        ("0000:04:00.0", "boot Linux with intel_iommu=on"),
    ] {
        let opened = Function::open(&machine.host, at(address), FunctionOptions::default());
        let said = opened.err().map(|error: VfioError| error.to_string()).unwrap_or_default();
        assert!(said.contains(want), "{address}: {said}");
    }
}
