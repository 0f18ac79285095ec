//! Making things durable.

use crate::calls::descriptor::on_descriptor;
use crate::edge::caught;
use crate::find::mount;
use core::ffi::c_int;

hook! {
    /// fsync(2)
    fn fsync(fd: c_int) -> c_int {
        on_descriptor(fd, || sys!(SYS_fsync, fd), |body| {
            body.file()?.fsync()?;
            Ok(0)
        })
    }
}

hook! {
    /// fdatasync(2)
    fn fdatasync(fd: c_int) -> c_int {
        on_descriptor(fd, || sys!(SYS_fdatasync, fd), |body| {
            body.file()?.fdatasync()?;
            Ok(0)
        })
    }
}

hook! {
    /// syncfs(2)
    fn syncfs(fd: c_int) -> c_int {
        on_descriptor(fd, || sys!(SYS_syncfs, fd), |body| {
            body.file()?;
            mount::files()?.sync()?;
            Ok(0)
        })
    }
}

hook! {
    /// sync(2): never fails
    fn sync() -> () {
        // sync has no way to tell; the next fsync of each description does.
        let _ = caught(mount::sync_all);
        sys!(SYS_sync);
    }
}
