//! Where traces and pages are written: links, modes, pipes; and what may not be written.

use crate::scratch::{Scratch, format};
use nvmed_trace::{Catalogue, Op, OutputFile, Request, Sink};
use std::fs::Permissions;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

#[test]
fn a_link_stays_one_and_a_file_keeps_its_mode() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("d")).unwrap();
    let path = scratch.file("d/t", "old");
    std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    symlink("d/t", scratch.path("link")).unwrap();
    OutputFile::write(&scratch.path("link"), b"new").unwrap();
    assert!(scratch.path("link").symlink_metadata().unwrap().is_symlink());
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    // One that leads to nothing yet makes it.
    symlink("d/none", scratch.path("early")).unwrap();
    OutputFile::write(&scratch.path("early"), b"there").unwrap();
    assert_eq!(std::fs::read(scratch.path("d/none")).unwrap(), b"there");
    assert_eq!(scratch.names(), ["d", "early", "link"]);
}

#[test]
fn a_pipe_is_written_to_and_stays() {
    let scratch = Scratch::new();
    let path = scratch.path("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let reader = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut text = String::new();
            std::fs::File::open(path).unwrap().read_to_string(&mut text).unwrap();
            text
        }
    });
    OutputFile::write(&path, b"a page").unwrap();
    assert!(path.symlink_metadata().unwrap().file_type().is_fifo(), "it was replaced");
    assert_eq!(reader.join().unwrap(), "a page");
    // A format that looks back at what it has written cannot be.
    let reader = std::thread::spawn({
        let path = path.clone();
        move || std::fs::read(path).unwrap()
    });
    let error = Sink::create(&path, format("oraclegeneral")).unwrap_err().to_string();
    assert!(error.contains("pipe: the records are looked at again at the end: name a plain file"), "{error}");
    assert_eq!(reader.join().unwrap(), b"");
}

#[test]
fn what_is_no_request_is_not_written() {
    let scratch = Scratch::new();
    let names = Catalogue::default();
    let mut sink = Sink::create(&scratch.path("t"), format("parquet")).unwrap();
    sink.write(&Request::new(Op::Read, 0, 512, 0), &names).unwrap();
    let error = sink.write(&Request::new(Op::Read, 0, 512, 1 << 63), &names).unwrap_err().to_string();
    assert!(error.contains("t: request 2 cannot be written: "), "{error}");
    drop(sink);
    assert_eq!(scratch.names(), Vec::<String>::new());
}
