//! Some of the requests of a trace.

use crate::scratch::{Scratch, rest};
use nvmed_trace::{Op, Options, Selection, Source, TraceError};

const TEXT: &str = "arrival_ms,op,offset_bytes,size_bytes,device,process\n\
                    1,read,0,512,a,x\n2,write,512,512,b,x\n3,read,1024,512,a,y\n\
                    4,discard,1536,512,b,y\n5,read,2048,512,,\n";

fn select(selection: &Selection) -> Result<(Vec<u64>, u64), TraceError> {
    let scratch = Scratch::new();
    let path = scratch.file("t", TEXT);
    let mut source = Source::open(&path, &Options::default()).unwrap().selecting(selection);
    let found = rest(&mut source)?;
    assert_eq!(source.counts().requests, found.len() as u64);
    Ok((found.iter().map(|one| one.arrival_ns / 1_000_000).collect(), source.counts().passed_over))
}

#[test]
fn requests_are_selected_by_device_process_operation_and_time() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let all = Selection::default();
    for (selection, wanted) in [
        (all.clone(), &[1, 2, 3, 4, 5][..]),
        (Selection { devices: names(&["a"]), ..all.clone() }, &[1, 3]),
        (Selection { devices: names(&["a", "b"]), ..all.clone() }, &[1, 2, 3, 4]),
        (Selection { devices: names(&[""]), ..all.clone() }, &[5]),
        (Selection { processes: names(&["y"]), ..all.clone() }, &[3, 4]),
        (Selection { ops: vec![Op::Write, Op::Discard], ..all.clone() }, &[2, 4]),
        (Selection { from_ns: Some(2_000_000), until_ns: Some(4_000_000), ..all.clone() }, &[2, 3]),
        (Selection { ops: vec![Op::Read], from_ns: Some(2_000_000), ..all.clone() }, &[3, 5]),
    ] {
        let (found, passed_over) = select(&selection).unwrap();
        assert_eq!((found.as_slice(), passed_over), (wanted, 5 - wanted.len() as u64), "{selection:?}");
    }
    let error = select(&Selection { devices: names(&["c"]), ..all }).unwrap_err().to_string();
    assert!(error.ends_with("t: none of its 5 requests is selected; its devices are a, b"), "{error}");
}
