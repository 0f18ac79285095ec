//! Fields of a profile that are changed by their keys, as a study of many drives does.

use super::DriveProfile;
use super::design::Design;
use super::fault::ProfileFault;
use super::span::Text;
use toml::{Table, Value};

impl DriveProfile {
    /// This profile with other values for some fields, called `name` in messages. A field is a path of keys with dots
    /// between them; of a list, a number counts from 0: `geometry.channels`, `block.1.page_kib`, or `block`, all of
    /// them. What is said later wins.
    ///
    /// # Errors
    /// [`ProfileFault`]: there is no such field, or the drive that comes out makes no sense.
    pub fn changed(&self, name: &str, changes: &[(String, Value)]) -> Result<Self, ProfileFault> {
        let wrong = |keys: &str, what: &str| ProfileFault::text(name, None, keys, what);
        let mut table: Table = toml::from_str(&self.text).map_err(|error| wrong("", error.message()))?;
        for (field, value) in changes {
            set(&mut table, field, value.clone()).map_err(|what| wrong(field, &what))?;
        }
        let text = toml::to_string(&table).map_err(|error| wrong("", &error.to_string()))?;
        let design = Design::read(&Text { file: name, text: &text, has_lines: false })?;
        Ok(Self { name: name.to_owned(), text, design })
    }
}

/// Gives the value at the end of a path of keys. A section that is not there yet is made; whether there is such a key
/// is seen when the profile is read.
///
/// # Errors
/// Why the path does not lead to a field.
fn set(table: &mut Table, field: &str, value: Value) -> Result<(), String> {
    let mut keys = field.split('.');
    let first = keys.next().filter(|key| !key.is_empty()).ok_or("a field has a name")?;
    let mut at = table.entry(first).or_insert_with(|| Value::Table(Table::new()));
    for key in keys {
        at = match at {
            Value::Table(table) => table.entry(key).or_insert_with(|| Value::Table(Table::new())),
            Value::Array(list) => {
                let count = list.len();
                let number = key.parse::<usize>().ok().filter(|number| *number < count);
                let number = number.ok_or_else(|| match count {
                    0 => "the list is empty".to_owned(),
                    1 => "the list has one entry; name it by 0".to_owned(),
                    _ => format!("the list has {count} entries; name one by 0 to {}", count - 1),
                })?;
                &mut list[number]
            }
            _ => return Err(format!("what is before `{key}` is a value and has no keys")),
        };
    }
    *at = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(changes: &[(&str, Value)]) -> Result<DriveProfile, String> {
        let changes: Vec<(String, Value)> =
            changes.iter().map(|(field, value)| ((*field).to_owned(), value.clone())).collect();
        let base = DriveProfile::named("emmc").unwrap();
        base.changed("emmc with changes", &changes).map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_changed_field_is_that_of_the_drive_and_the_others_stay() {
        let base = DriveProfile::named("emmc").unwrap();
        let changed = change(&[
            ("geometry.channels", Value::Integer(1)),
            ("geometry.channels", Value::Integer(4)),
            ("block.0.page_kib", Value::Integer(16)),
        ])
        .unwrap();
        let (before, after) = (base.template(), changed.template());
        assert_eq!((after.channels, after.blocks[0].page_bytes), (4, 16384));
        assert_eq!((after.dies, &after.bus_in, after.blocks[0].pages), (before.dies, &before.bus_in, 1024));
        assert_eq!(change(&[]).unwrap().drive(1 << 30), base.drive(1 << 30));
        assert_eq!(changed.usual_bytes() / base.usual_bytes(), 8);
    }

    #[test]
    fn what_is_no_field_is_said_in_one_line_without_a_line_number() {
        for (field, value, words) in [
            ("geometry.chanels", Value::Integer(2), "`geometry.chanels`: unknown field `chanels`"),
            ("geometri.channels", Value::Integer(2), "unknown field `geometri`"),
            ("geometry.channels.x", Value::Integer(2), "before `x` is a value"),
            ("block.page_kib", Value::Integer(8), "the list has one entry; name it by 0"),
            ("block.1.page_kib", Value::Integer(8), "the list has one entry; name it by 0"),
            ("block", Value::Array(Vec::new()), "not 0"),
            ("geometry.channels", Value::Integer(65), "65 is not a whole number from 1 to 64"),
            ("", Value::Integer(65), "a field has a name"),
        ] {
            let fault = change(&[(field, value)]).unwrap_err();
            assert!(fault.starts_with("emmc with changes: ") && fault.contains(words), "{field}: {fault}");
            assert!(!fault.contains('\n'), "{fault}");
        }
    }
}
