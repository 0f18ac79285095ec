//! Where a function sits on the PCI bus.

use core::fmt;
use core::str::FromStr;

/// Domain, bus, device and function, written `0000:01:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Domain; 0 on most machines, up to 32 bits on some virtual ones.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus, below 32.
    pub device: u8,
    /// Function of the device, below 8.
    pub function: u8,
}

/// A text that is no PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no PCI address; write it as 0000:01:00.0, as `lspci -D` and `nvmed list` do")]
pub struct NotAnAddress {
    /// As written.
    pub text: String,
}

impl FromStr for Address {
    type Err = NotAnAddress;

    /// Reads `0000:01:00.0`, or `01:00.0` for domain 0.
    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        parse(text).ok_or_else(|| NotAnAddress { text: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<Address> {
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
    let address = Address {
        domain: hex(domain, 4..=8)?,
        bus: u8::try_from(hex(bus, 2..=2)?).ok()?,
        device: u8::try_from(hex(device, 2..=2)?).ok()?,
        function: u8::try_from(hex(function, 1..=1)?).ok()?,
    };
    (address.device < 32 && address.function < 8).then_some(address)
}

fn hex(text: &str, digits: core::ops::RangeInclusive<usize>) -> Option<u32> {
    let plain = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if plain { u32::from_str_radix(text, 16).ok() } else { None }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for text in ["0000:01:00.0", "10000:e1:1f.7"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("3a:00.1".parse::<Address>().unwrap().to_string(), "0000:3a:00.1");
        for text in
            ["", "1", "01:00", "01:20.0", "01:00.8", "0000:01:00.0x", "../01:00.0", "+1:00.0", "1:0.0"]
        {
            let said = text.parse::<Address>().unwrap_err().to_string();
            assert!(said.contains(&format!("`{text}` is no PCI address")), "{said}");
        }
    }

    proptest! {
        #[test]
        fn fuzz_any_text_is_an_address_or_is_refused(text in ".{0,16}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
            }
        }
    }
}
