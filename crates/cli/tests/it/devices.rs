//! `nvmed list` on a copy of the kernel's files, and arguments of `bind` and `unbind`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Files of a kernel, removed at the end.
struct Root(PathBuf);

impl Root {
    fn new() -> Self {
        let root = Self(std::env::temp_dir().join(format!("nvmed-list-{}", std::process::id())));
        let function = "sys/bus/pci/devices/0000:01:00.0";
        let block = "sys/class/block/nvme0n1";
        for (path, text) in [
            (format!("{function}/class"), "0x010802"),
            (format!("{function}/vendor"), "0x144d"),
            (format!("{function}/device"), "0xa808"),
            (format!("{function}/nvme/nvme0/model"), "A \"fast\" drive   "),
            (format!("{function}/nvme/nvme0/serial"), "S1"),
            (format!("{function}/nvme/nvme0/nvme0n1/nsid"), "1"),
            (format!("{block}/dev"), "259:0"),
            (format!("{block}/nsid"), "1"),
            (format!("{block}/size"), "2097152"),
            (format!("{block}/queue/logical_block_size"), "512"),
            ("sys/class/nvme-generic/ng0n1/dev".to_owned(), "1:1"),
            ("proc/self/mountinfo".to_owned(), "1 1 259:0 / /data rw - ext4 /dev/nvme0n1 rw"),
        ] {
            let path = root.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
        std::os::unix::fs::symlink("../drivers/nvme", root.0.join(function).join("driver")).unwrap();
        root
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn nvmed(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nvmed")).args(arguments).output().unwrap()
}

fn list(root: &Path, json: &[&str]) -> String {
    let done = nvmed(&[&["list", "--root", root.to_str().unwrap()], json].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn a_drive_is_listed_with_its_driver_its_users_and_the_ways_to_open_it() {
    let root = Root::new();
    let text = list(&root.0, &[]);
    for want in [
        "0000:01:00.0  144d:a808, nvme, no IOMMU",
        "A \"fast\" drive, serial S1",
        "namespace 1, 1.0 GiB, blocks of 512 B, /dev/nvme0n1 is mounted at /data",
        "open as  uring:/dev/nvme0n1  uring-cmd:/dev/ng0n1",
        "not as   vfio:0000:01:00.0: 0000:01:00.0 is behind no IOMMU",
    ] {
        assert!(text.contains(want), "no {want:?} in\n{text}");
    }
    let json = list(&root.0, &["--json"]);
    assert_eq!(json.lines().count(), 1);
    assert!(json.contains(r#""engines":["uring:/dev/nvme0n1","uring-cmd:/dev/ng0n1"]"#), "{json}");
    assert!(json.contains(r#""uses":["/dev/nvme0n1 is mounted at /data"]"#), "{json}");
    let empty = list(&root.0.join("nothing"), &[]);
    assert!(empty.starts_with("no NVMe device on this machine"), "{empty}");
}

#[test]
fn what_is_no_address_or_is_not_there_is_said() {
    for (command, address, status, want) in [
        ("bind", "nvme0", 2, "bind: `nvme0` is no PCI address"),
        ("unbind", "ffff:ff:1f.7", 1, "unbind: no PCI function ffff:ff:1f.7"),
    ] {
        let done = nvmed(&[command, address]);
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.code() == Some(status) && said.contains(want), "{:?} {said}", done.status);
    }
}
