//! The vfio-user protocol: a device in another process, over a Unix socket.
#![forbid(unsafe_code)]
