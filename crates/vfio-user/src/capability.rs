//! The JSON of a version message ("VFIO_USER_VERSION").

use crate::error::ProtocolError;
use crate::message::{DATA_BYTES_MAX, FDS_MAX};
use serde_json::{Value, json};

/// DMA ranges that we let a client map at once: each is a descriptor and a mapping of the server.
const DMA_MAPS_MAX: u32 = 4096;

/// What one side can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Descriptors in one message; 1 if not said.
    pub fds_max: u32,
    /// Bytes of one region or DMA access; 1 MiB if not said.
    pub data_bytes_max: u32,
    /// DMA ranges mapped at once; 65,535 if not said.
    pub dma_maps_max: u32,
}

impl Capabilities {
    /// Ours, on both sides.
    pub const OURS: Self =
        Self { fds_max: FDS_MAX as u32, data_bytes_max: DATA_BYTES_MAX as u32, dma_maps_max: DMA_MAPS_MAX };
    const DEFAULT: Self = Self { fds_max: 1, data_bytes_max: 1 << 20, dma_maps_max: 65_535 };

    /// The version data, with its terminating NUL.
    #[must_use]
    pub(crate) fn to_json(self) -> Vec<u8> {
        let text = json!({ "capabilities": {
            "max_msg_fds": self.fds_max,
            "max_data_xfer_size": self.data_bytes_max,
            "max_dma_maps": self.dma_maps_max,
            "pgsizes": 4096,
        }});
        let mut bytes = text.to_string().into_bytes();
        bytes.push(0);
        bytes
    }

    /// Reads version data. None at all means the defaults; what we do not know is passed over.
    ///
    /// # Errors
    /// [`ProtocolError::Capabilities`].
    pub(crate) fn from_json(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let fail = |why: String| ProtocolError::Capabilities { why };
        let Some((&last, text)) = bytes.split_last() else { return Ok(Self::DEFAULT) };
        if last != 0 {
            return Err(fail("the text does not end in NUL".to_owned()));
        }
        let value: Value = serde_json::from_slice(text).map_err(|error| fail(error.to_string()))?;
        if !value.is_object() {
            return Err(fail("not a JSON object".to_owned()));
        }
        let capabilities = match value.get("capabilities") {
            None => return Ok(Self::DEFAULT),
            Some(found) if found.is_object() => found,
            Some(_) => return Err(fail("`capabilities` is not an object".to_owned())),
        };
        let number = |name: &str, default: u32| match capabilities.get(name) {
            None => Ok(default),
            Some(value) => value
                .as_u64()
                .map(|number| u32::try_from(number).unwrap_or(u32::MAX))
                .ok_or_else(|| fail(format!("`{name}` is not a number"))),
        };
        Ok(Self {
            fds_max: number("max_msg_fds", Self::DEFAULT.fds_max)?,
            data_bytes_max: number("max_data_xfer_size", Self::DEFAULT.data_bytes_max)?,
            dma_maps_max: number("max_dma_maps", Self::DEFAULT.dma_maps_max)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_missing_has_its_default() {
        assert_eq!(Capabilities::from_json(&Capabilities::OURS.to_json()).unwrap(), Capabilities::OURS);
        for text in ["", "{}\0", "{\"capabilities\":{}}\0", "{\"other\":[1]}\0"] {
            assert_eq!(Capabilities::from_json(text.as_bytes()).unwrap(), Capabilities::DEFAULT, "{text}");
        }
        let libvfio = "{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":1048576,\
                       \"migration\":{\"pgsize\":4096},\"twin_socket\":{\"supported\":true}}}\0";
        assert_eq!(Capabilities::from_json(libvfio.as_bytes()).unwrap().fds_max, 8);
    }

    #[test]
    fn what_is_no_capability_is_named() {
        for (text, want) in [
            ("{}", "NUL"),
            ("{\0", "EOF"),
            ("[1]\0", "not a JSON object"),
            ("{\"capabilities\":3}\0", "not an object"),
            ("{\"capabilities\":{\"max_msg_fds\":\"8\"}}\0", "`max_msg_fds` is not a number"),
            ("{\"capabilities\":{\"max_msg_fds\":-8}}\0", "`max_msg_fds` is not a number"),
        ] {
            let said = Capabilities::from_json(text.as_bytes()).unwrap_err().to_string();
            assert!(said.contains(want), "for {text:?} it said {said:?}");
        }
    }
}
