//! A page without a browser: every tag is closed, every attribute quoted, and nothing is loaded.

/// Elements that have no end.
const VOID: [&str; 6] = ["!DOCTYPE", "meta", "br", "img", "hr", "input"];
/// What loads something, or says that a number was none.
const UNWANTED: [&str; 6] = ["http", "url(", "@import", " src=", "<link", "NaN"];

/// What is wrong with a page.
pub fn faults(page: &str) -> Vec<String> {
    let unwanted = UNWANTED.iter().filter(|word| page.contains(**word));
    let mut faults: Vec<String> = unwanted.map(|word| format!("{word} is on it")).collect();
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        let Some(end) = rest[at..].find('>').map(|end| at + end) else {
            faults.push(format!("a tag has no end: {:.40}", &rest[at..]));
            break;
        };
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        let name = tag.split([' ', '/', '\n']).find(|word| !word.is_empty()).unwrap_or("");
        if tag.starts_with('/') {
            match open.pop() {
                Some(last) if last == name => {}
                last => faults.push(format!("</{name}> closes <{}>", last.unwrap_or("nothing"))),
            }
        } else if !VOID.contains(&name) {
            if tag.replace("=\"", "").contains('=') && !tag.contains("=\"") {
                faults.push(format!("<{tag}>: an attribute without quotes"));
            }
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
        // What is in these is no markup.
        if ["script", "style"].contains(&tag) {
            let Some(end) = rest.find(&format!("</{tag}>")) else { break };
            rest = &rest[end..];
        }
    }
    faults.extend(open.iter().map(|name| format!("<{name}> is not closed")));
    faults
}
