//! `#!` lines, read as the kernel reads them (fs/binfmt_script.c).

/// What the kernel looks at of a program, `BINPRM_BUF_SIZE`.
pub(crate) const HEAD_BYTES: usize = 256;
/// Scripts whose interpreter is a script again, before the kernel says ELOOP.
pub(crate) const DEPTH_MAX: usize = 5;

/// The interpreter and its one optional argument.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// Path of the interpreter.
    pub interpreter: &'a [u8],
    /// What follows it, spaces and all.
    pub argument: Option<&'a [u8]>,
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// The first line of a script. `None`: no script, or one that the kernel would not run; both are ENOEXEC.
pub(crate) fn line(head: &[u8]) -> Option<Line<'_>> {
    let rest = head.get(..HEAD_BYTES.min(head.len()))?.strip_prefix(b"#!")?;
    // The kernel's buffer is filled up with NULs.
    let text = match rest.iter().position(|&byte| byte == b'\n') {
        Some(end) => &rest[..end],
        None if head.len() < HEAD_BYTES => rest,
        // Cut off: good enough if the interpreter's name is whole.
        None => {
            let name = rest.iter().position(|&byte| !is_blank(byte)).map(|start| &rest[start..])?;
            name.iter().position(|&byte| is_blank(byte) || byte == 0)?;
            rest
        }
    };
    let text = trimmed(text.split(|&byte| byte == 0).next()?);
    let end = text.iter().position(|&byte| is_blank(byte)).unwrap_or(text.len());
    let (interpreter, argument) = (&text[..end], trimmed(&text[end..]));
    let argument = Some(argument).filter(|argument| !argument.is_empty());
    (!interpreter.is_empty()).then_some(Line { interpreter, argument })
}

fn trimmed(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|&byte| !is_blank(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|&byte| !is_blank(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(String, Option<String>)> {
        let text_of = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        line(text.as_bytes()).map(|line| (text_of(line.interpreter), line.argument.map(text_of)))
    }

    #[test]
    fn lines_are_read_as_the_kernel_reads_them() {
        let found = |name: &str, argument: Option<&str>| Some((name.to_owned(), argument.map(str::to_owned)));
        assert_eq!(read("#!/bin/sh\necho"), found("/bin/sh", None));
        assert_eq!(read("#! \t/bin/sh -e  -u \t\n"), found("/bin/sh", Some("-e  -u")));
        assert_eq!(read("#!/bin/sh"), found("/bin/sh", None));
        assert_eq!(read("#!\n"), None);
        assert_eq!(read("#!   "), None);
        assert_eq!(read("echo hi\n"), None);
        assert_eq!(read(""), None);
        // A name that fills the buffer may be cut off; an argument may be.
        let long = "x".repeat(300);
        assert_eq!(read(&format!("#!/{long}\n")), None);
        let cut = read(&format!("#!/bin/sh {long}\n")).expect("the name is whole");
        assert_eq!(cut.1.expect("an argument").len(), HEAD_BYTES - "#!/bin/sh ".len());
    }
}
