//! RocksDB, by its C interface, from the shared library that the host has (Debian: librocksdb7.8).

use crate::{Job, Key, Store, Value};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr::null_mut;

const NAMES: [&str; 3] = ["librocksdb.so", "librocksdb.so.7.8", "librocksdb.so.8"];
/// The share of the memory that a write buffer has; there are two at most.
const WRITE_BUFFER_SHARE: usize = 16;
const FILTER_BITS: f64 = 10.0;
const BATCH: usize = 1000;

type Object = *mut c_void;

/// Functions of `rocksdb/c.h`, under their names there.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        #[allow(non_snake_case, reason = "the names of rocksdb/c.h")]
        struct Functions { $($name: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)* }

        impl Functions {
            fn load(library: &Library) -> Result<Self, String> {
                Ok(Self { $($name: {
                    let name = concat!("rocksdb_", stringify!($name));
                    // SAFETY: the types are those that rocksdb/c.h declares for this name.
                    *unsafe { library.get(name.as_bytes()) }.map_err(|error| error.to_string())?
                },)* })
            }
        }
    };
}

functions! {
    options_create: fn() -> Object;
    options_set_create_if_missing: fn(Object, c_uchar);
    options_set_use_direct_reads: fn(Object, c_uchar);
    options_set_use_direct_io_for_flush_and_compaction: fn(Object, c_uchar);
    options_set_compression: fn(Object, c_int);
    options_set_write_buffer_size: fn(Object, usize);
    options_set_block_based_table_factory: fn(Object, Object);
    options_increase_parallelism: fn(Object, c_int);
    block_based_options_create: fn() -> Object;
    block_based_options_set_block_cache: fn(Object, Object);
    block_based_options_set_filter_policy: fn(Object, Object);
    block_based_options_set_cache_index_and_filter_blocks: fn(Object, c_uchar);
    block_based_options_set_pin_l0_filter_and_index_blocks_in_cache: fn(Object, c_uchar);
    filterpolicy_create_bloom_full: fn(f64) -> Object;
    cache_create_lru: fn(usize) -> Object;
    open: fn(Object, *const c_char, *mut *mut c_char) -> Object;
    close: fn(Object);
    writeoptions_create: fn() -> Object;
    writeoptions_set_sync: fn(Object, c_uchar);
    writeoptions_disable_WAL: fn(Object, c_int);
    readoptions_create: fn() -> Object;
    writebatch_create: fn() -> Object;
    writebatch_put: fn(Object, *const u8, usize, *const u8, usize);
    writebatch_clear: fn(Object);
    writebatch_destroy: fn(Object);
    write: fn(Object, Object, Object, *mut *mut c_char);
    put: fn(Object, Object, *const u8, usize, *const u8, usize, *mut *mut c_char);
    get_pinned: fn(Object, Object, *const u8, usize, *mut *mut c_char) -> Object;
    pinnableslice_value: fn(Object, *mut usize) -> *const u8;
    pinnableslice_destroy: fn(Object);
    compact_range: fn(Object, *const u8, usize, *const u8, usize);
    free: fn(*mut c_void);
}

pub(crate) struct RocksDb {
    functions: Functions,
    db: Object,
    read: Object,
    durable: Object,
    quick: Object,
    /// Last, so that it is unloaded last.
    _library: Library,
}

// SAFETY: RocksDB's own documentation says that an open database and constant option objects may be used by
// several threads at once; the pointers are never changed after `open`.
unsafe impl Sync for RocksDb {}

impl RocksDb {
    pub(crate) fn open(path: &Path, job: &Job, _new: bool) -> Result<Self, String> {
        // SAFETY: its initialisers are those of a well-kept system library.
        let library = NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
        let library = library.ok_or("RocksDB's shared library is missing: apt install librocksdb-dev")?;
        let f = Functions::load(&library)?;
        let dir =
            CString::new(path.join("rocks").display().to_string()).map_err(|error| error.to_string())?;
        let mut error: *mut c_char = null_mut();
        let write_buffer_bytes = job.memory_bytes / WRITE_BUFFER_SHARE;
        // SAFETY: each call gets objects that its own constructors made, of the kinds that c.h names, and they live
        // as long as the process; `dir` is a C string and `error` a place for one, both alive during the call.
        let (db, read, durable, quick) = unsafe {
            let table = (f.block_based_options_create)();
            // As much as our node cache; two write buffers, tables and the process itself have the rest.
            let cache_bytes = job.memory_bytes / 2;
            (f.block_based_options_set_block_cache)(table, (f.cache_create_lru)(cache_bytes));
            (f.block_based_options_set_filter_policy)(table, (f.filterpolicy_create_bloom_full)(FILTER_BITS));
            (f.block_based_options_set_cache_index_and_filter_blocks)(table, 1);
            (f.block_based_options_set_pin_l0_filter_and_index_blocks_in_cache)(table, 1);
            let options = (f.options_create)();
            (f.options_set_create_if_missing)(options, 1);
            (f.options_set_use_direct_reads)(options, 1);
            (f.options_set_use_direct_io_for_flush_and_compaction)(options, 1);
            (f.options_set_compression)(options, 0);
            (f.options_set_write_buffer_size)(options, write_buffer_bytes);
            (f.options_set_block_based_table_factory)(options, table);
            (f.options_increase_parallelism)(options, 2);
            let db = (f.open)(options, dir.as_ptr(), &raw mut error);
            let (durable, quick) = ((f.writeoptions_create)(), (f.writeoptions_create)());
            (f.writeoptions_set_sync)(durable, 1);
            (f.writeoptions_disable_WAL)(quick, 1);
            (db, (f.readoptions_create)(), durable, quick)
        };
        let this = Self { functions: f, db, read, durable, quick, _library: library };
        this.check(error)?;
        Ok(this)
    }

    fn check(&self, error: *mut c_char) -> Result<(), String> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: RocksDB's errors are C strings that the caller owns, freed once, here.
        let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
        // SAFETY: as above.
        unsafe { (self.functions.free)(error.cast()) };
        Err(format!("rocksdb: {text}"))
    }
}

impl Store for RocksDb {
    fn fill(&self, pairs: &mut dyn Iterator<Item = (Key, Value)>) -> Result<(), String> {
        let f = &self.functions;
        // SAFETY: no arguments.
        let batch = unsafe { (f.writebatch_create)() };
        let mut more = true;
        while more {
            let mut held = 0;
            for (key, value) in (&mut *pairs).take(BATCH) {
                // SAFETY: the batch copies the bytes, which are alive and as long as said.
                unsafe { (f.writebatch_put)(batch, key.as_ptr(), key.len(), value.as_ptr(), value.len()) };
                held += 1;
            }
            more = held == BATCH;
            let mut error = null_mut();
            // SAFETY: objects of `open` and of this function; `error` is a place for an error.
            unsafe {
                (f.write)(self.db, self.quick, batch, &raw mut error);
                (f.writebatch_clear)(batch);
            }
            self.check(error)?;
        }
        // SAFETY: the batch is not used again; no bounds mean the whole range.
        unsafe {
            (f.writebatch_destroy)(batch);
            (f.compact_range)(self.db, std::ptr::null(), 0, std::ptr::null(), 0);
        }
        Ok(())
    }

    fn get(&self, key: &Key, value: &mut Vec<u8>) -> Result<bool, String> {
        let f = &self.functions;
        let mut error = null_mut();
        // SAFETY: objects of `open`; the key is alive and as long as said.
        let slice = unsafe { (f.get_pinned)(self.db, self.read, key.as_ptr(), key.len(), &raw mut error) };
        self.check(error)?;
        if slice.is_null() {
            return Ok(false);
        }
        let mut len = 0;
        // SAFETY: the slice is one of `get_pinned`; its bytes live until it is destroyed, which is after the copy.
        unsafe {
            let bytes = (f.pinnableslice_value)(slice, &raw mut len);
            value.extend_from_slice(std::slice::from_raw_parts(bytes, len));
            (f.pinnableslice_destroy)(slice);
        }
        Ok(true)
    }

    fn put(&self, key: &Key, value: &Value) -> Result<(), String> {
        let mut error = null_mut();
        let (f, key_len, value_len) = (&self.functions, key.len(), value.len());
        // SAFETY: objects of `open`; key and value are alive and as long as said.
        unsafe {
            (f.put)(self.db, self.durable, key.as_ptr(), key_len, value.as_ptr(), value_len, &raw mut error)
        };
        self.check(error)
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        // SAFETY: nobody uses the database any more: the box is the last owner.
        unsafe { (self.functions.close)(self.db) };
        Ok(())
    }
}
