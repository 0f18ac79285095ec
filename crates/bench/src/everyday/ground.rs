//! What the jobs work on: a tree of small files, C files with a makefile, SQL, and this repository.

use crate::mounted::Ours;
use crate::programs::git::repository;
use crate::programs::shell::{Shell, quoted};
use crate::sqlite;
use nvmed_dice::Dice;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The tree: Python's own modules where they are installed.
const TREE: &str = "/usr/lib/python3";
/// Else files of this number and size, in directories of this many.
const FILES: usize = 3_500;
const FILES_A_DIR: usize = 20;
const SMALLEST: usize = 1 << 9;
const LARGEST: usize = 34 << 10;
/// C files of the make job, functions of each, and inserts of the SQLite job.
const UNITS: usize = 40;
const FUNCTIONS: usize = 5;
const INSERTS: usize = 2_000;

/// Sources on the host, from which each place has its copy.
pub(super) struct Ground {
    tree: PathBuf,
    units: PathBuf,
    sql: PathBuf,
    repository: PathBuf,
    /// Regular files of the tree.
    pub(super) files: usize,
}

impl Ground {
    /// Makes them beside `ours`.
    ///
    /// # Errors
    /// The host's; this process does not run in the repository.
    pub(super) fn new(ours: &Ours) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("sources of the jobs: {error}");
        let tree = if Path::new(TREE).is_dir() { TREE.into() } else { ours.beside("tree") };
        if tree != Path::new(TREE) {
            generate_tree(&tree).map_err(failed)?;
        }
        let units = ours.beside("units");
        generate_units(&units).map_err(failed)?;
        let sql = sqlite::script(&ours.beside(""), "DELETE", INSERTS)?;
        let files = count(&tree).map_err(failed)?;
        Ok(Self { tree, units, sql, repository: repository()?, files })
    }

    /// About how many bytes the tree's files have.
    ///
    /// # Errors
    /// The host's.
    pub(super) fn tree_bytes() -> Result<u64, String> {
        let tree = Path::new(TREE);
        if !tree.is_dir() {
            return Ok((FILES * (SMALLEST + LARGEST) / 2) as u64);
        }
        bytes_of(tree).map_err(|error| format!("{TREE}: {error}"))
    }

    /// Copies the tree and the C files to the directory `dir`, as a shell in that place sees it, and gives the shell
    /// the names that the jobs use: D, and SQL and REPOSITORY of the host's.
    ///
    /// # Errors
    /// A copy failed.
    pub(super) fn prepare(&self, shell: &mut Shell, dir: &Path) -> Result<(), String> {
        shell.run(&format!(
            "D={}; SQL={}; REPOSITORY={}; mkdir -p $D && rm -rf $D/*",
            quoted(dir),
            quoted(&self.sql),
            quoted(&self.repository)
        ))?;
        shell.run(&format!(
            "cp -r {} $D/tree && cp -r {} $D/units",
            quoted(&self.tree),
            quoted(&self.units)
        ))?;
        shell.run("sync -f $D").map(drop)
    }

    /// What it is, for a row's conditions.
    pub(super) fn told(&self) -> String {
        format!("{} ({} files)", self.tree.display(), self.files)
    }
}

/// Regular files below `dir`.
fn count(dir: &Path) -> std::io::Result<usize> {
    let mut files = 0;
    for entry in std::fs::read_dir(dir)? {
        let kind = entry.as_ref().map_or(Ok(None), |entry| entry.file_type().map(Some))?;
        match kind {
            Some(kind) if kind.is_dir() => files += count(&entry?.path())?,
            Some(kind) if kind.is_file() => files += 1,
            _ => {}
        }
    }
    Ok(files)
}

/// Bytes of the regular files below `dir`.
fn bytes_of(dir: &Path) -> std::io::Result<u64> {
    std::fs::read_dir(dir)?.try_fold(0, |bytes, entry| {
        let entry = entry?;
        let kind = entry.file_type()?;
        let more = if kind.is_dir() {
            bytes_of(&entry.path())?
        } else if kind.is_file() {
            entry.metadata()?.len()
        } else {
            0
        };
        Ok(bytes + more)
    })
}

/// A tree of about the same shape, whose bytes do not compress.
fn generate_tree(root: &Path) -> std::io::Result<()> {
    let mut dice = Dice::new(1);
    let mut bytes = vec![0; LARGEST];
    for file in 0..FILES {
        let dir = root.join(format!("package{}/part{}", file / FILES_A_DIR / 8, file / FILES_A_DIR));
        std::fs::create_dir_all(&dir)?;
        let length = SMALLEST + dice.index(LARGEST - SMALLEST);
        dice.fill(&mut bytes[..length]);
        std::fs::write(dir.join(format!("module{file}.py")), &bytes[..length])?;
    }
    Ok(())
}

/// C files that include a header of their own and the host's, and a makefile.
fn generate_units(root: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(root)?;
    let mut header = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
    let mut main = String::from("#include \"all.h\"\nint main(void) {\n\tint sum = 0;\n");
    // Writing to a string cannot fail.
    for unit in 0..UNITS {
        let mut text = String::from("#include \"all.h\"\n");
        for function in 0..FUNCTIONS {
            let name = format!("int of_{unit}_{function}(int n)");
            let _ = writeln!(header, "{name};");
            let _ = writeln!(
                text,
                "{name} {{\n\tchar text[64];\n\tsnprintf(text, sizeof text, \"%d\", n * {function});\n\t\
                 return (int)strlen(text) + n;\n}}"
            );
        }
        std::fs::write(root.join(format!("unit{unit}.c")), text)?;
        let _ = writeln!(main, "\tsum += of_{unit}_0(sum);");
    }
    main.push_str("\treturn sum == 0;\n}\n");
    std::fs::write(root.join("all.h"), header)?;
    std::fs::write(root.join("main.c"), main)?;
    let makefile = "OBJECTS = $(patsubst %.c,%.o,$(wildcard *.c))\nall: $(OBJECTS)\n\t$(CC) -o $@ $^\n\
                    %.o: %.c all.h\n\t$(CC) -O1 -c -o $@ $<\nclean:\n\trm -f *.o all\n";
    std::fs::write(root.join("Makefile"), makefile)
}
