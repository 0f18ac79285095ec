//! NVMeDFS

#![forbid(unsafe_code)]
