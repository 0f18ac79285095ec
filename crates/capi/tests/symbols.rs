//! The shared library's symbols and the header's declarations are the same names.

mod support;

use std::collections::BTreeSet;
use std::process::Command;
use support::{library, root, succeed};

fn exported() -> BTreeSet<String> {
    let output = succeed(
        Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library("libnvmed.so")),
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// Names that are followed by `(` outside comments and preprocessor lines.
fn declared(header: &str) -> BTreeSet<String> {
    let mut code = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        code.push_str(before);
        rest = comment.split_once("*/").expect("comments end").1;
    }
    code.push_str(rest);
    let code: String = code.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join(" ");
    let names = code
        .match_indices('(')
        .map(|(at, _)| code[..at].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next());
    names
        .flatten()
        .filter(|name| name.starts_with("nvmed_") || name.starts_with("nvmedfs_"))
        .map(str::to_owned)
        .collect()
}

/// Both headers, one after the other.
fn headers() -> String {
    let text = |name: &str| std::fs::read_to_string(root().join("include").join(name)).unwrap();
    text("nvmed.h") + &text("nvmedfs.h")
}

#[test]
fn every_symbol_is_declared_and_every_declaration_is_there() {
    let (declared, exported) = (declared(&headers()), exported());
    assert!(declared.len() > 90, "the headers were read: {declared:?}");
    assert_eq!(declared, exported, "left: include/*.h, right: libnvmed.so");
}

/// What NVMeDirect had, save for `virt_to_phys`, which now has a prefix.
#[test]
fn the_names_of_nvmedirect_are_there() {
    let exported = exported();
    for name in "open close feature_get feature_set queue_create queue_destroy handle_create handle_destroy \
        handle_create_mq handle_destroy_mq handle_feature_get handle_feature_set get_buffer put_buffer virt_to_phys \
        lseek read pread write pwrite flush discard aio_read aio_write aio_queue_submit aio_handle_complete \
        set_user_quota get_user_quota create_queue create_handle set_param"
        .split_whitespace()
    {
        assert!(exported.contains(&format!("nvmed_{name}")), "nvmed_{name}");
    }
}

#[test]
fn the_library_says_which_interface_it_has() {
    let output = succeed(Command::new("readelf").arg("-d").arg(library("libnvmed.so")));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Library soname: [libnvmed.so.0]"), "{text}");
}

/// A C++ program can include the header, and a C program may include it twice and first.
#[test]
fn the_header_stands_alone() {
    let bench = support::Bench::new();
    let source = bench.dir.join("alone.c");
    std::fs::write(&source, "#include <nvmedfs.h>\n#include <nvmed.h>\n#include <nvmedfs.h>\n").unwrap();
    let include = root().join("include");
    for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
        let mut command = Command::new(compiler);
        command.args(["-x", language, "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]);
        if compiler == "c++" && Command::new(compiler).arg("--version").output().is_err() {
            println!("SKIPPED: no C++ compiler here; install g++ to check that the header is C++ too");
            continue;
        }
        succeed(command.arg(&include).arg(&source));
    }
}

/// Each function has a page, and groff has nothing to say about any.
#[test]
fn every_function_has_a_man_page() {
    let mut described = BTreeSet::new();
    let lints = Command::new("groff").arg("--version").output().is_ok();
    if !lints {
        println!("SKIPPED: no groff here; install it to check how the man pages are written");
    }
    for page in std::fs::read_dir(root().join("man")).unwrap() {
        let page = page.unwrap().path();
        let text = std::fs::read_to_string(&page).unwrap();
        let names = text.split(".SH NAME\n").nth(1).unwrap().split(" \\-").next().unwrap();
        described.extend(names.split(", ").map(str::to_owned));
        if lints {
            let output = succeed(Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(&page));
            assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{}", page.display());
        }
    }
    described.remove("nvmed");
    described.remove("nvmedfs");
    assert_eq!(described, declared(&headers()), "left: man/, right: include/");
}
