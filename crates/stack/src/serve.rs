//! A virtual device served to another process.

use crate::device;
use crate::error::StackError;
use crate::spec::DeviceSpec;
use crate::{Open, SpecError};
use nvmed_vdev::{Clock, PciFunction};
use nvmed_vfio_user::{Server, Stop};
use std::path::Path;

/// A virtual device behind a vfio-user socket.
pub struct ServedDevice {
    server: Server,
    function: PciFunction,
}

impl ServedDevice {
    /// Opens the device and makes the socket; clients are served by [`ServedDevice::run`].
    ///
    /// # Errors
    /// [`StackError`]: the device is not a virtual one, or cannot be opened, or the socket cannot be made.
    pub fn open(spec: &DeviceSpec, open: Open, socket: &Path) -> Result<Self, StackError> {
        let DeviceSpec::Virtual(virtual_spec) = spec else {
            let error = SpecError::NotServed { name: spec.engine().to_owned() };
            return Err(StackError::Spec { device: spec.to_string(), error });
        };
        if virtual_spec.behaviour.clock() == Clock::Virtual {
            return Err(StackError::Spec { device: spec.to_string(), error: SpecError::SimulatedTime });
        }
        let slots = virtual_spec.driver.hmb_io_slots;
        if slots > 0 {
            return Err(StackError::Spec {
                device: spec.to_string(),
                error: SpecError::ClientsDriver { slots },
            });
        }
        let controller = device::controller(virtual_spec, open, None)?;
        let function = PciFunction::new(controller).map_err(|error| StackError::Thread { error })?;
        let server = Server::bind(socket).map_err(|error| StackError::Serve { error })?;
        Ok(Self { server, function })
    }

    /// What ends [`ServedDevice::run`].
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.server.stop()
    }

    /// Serves one client after the other until stopped. The socket is removed when this value is dropped.
    ///
    /// # Errors
    /// [`StackError::Serve`].
    pub fn run(&mut self) -> Result<(), StackError> {
        self.server.run(&mut self.function).map_err(|error| StackError::Serve { error })
    }
}
