//! The page of a report: one HTML file that loads nothing, light or dark as its reader prefers.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::machine::host::Host;

const STYLE: &str = "
:root{color-scheme:light dark;--page:#fff;--ink:#1c2126;--soft:#59626b;--rule:#dde1e5;--strong:#8b949d;\
--head:#f5f6f8;--good:#00704f;--fair:#5a6b00;--bad:#b3261e;--zone:#00704f14}
@media(prefers-color-scheme:dark){:root{--page:#16181b;--ink:#e8eaed;--soft:#a5adb5;--rule:#33383e;--strong:#737b84;\
--head:#202327;--good:#4cc79b;--fair:#c0cc58;--bad:#ff8a80;--zone:#4cc79b1c}}
body{font:15px/1.5 system-ui,'Segoe UI',Roboto,'Helvetica Neue',sans-serif;margin:0 auto;max-width:62rem;\
padding:1.5rem 1.25rem 4rem;color:var(--ink);background:var(--page)}
h1{font-size:1.6rem;margin:0}h2{font-size:1.25rem;margin:2.5rem 0 .5rem;border-bottom:1px solid var(--rule)}
h3{font-size:1rem;margin:1.75rem 0 .25rem}p{margin:.4rem 0;max-width:48rem}.soft,li{color:var(--soft)}
ul{padding-left:1.2rem;margin:.5rem 0}a{color:inherit}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(28rem,100%),1fr));gap:1rem 1.25rem;margin:1rem 0}
figure{margin:0;min-width:0}figcaption{font-weight:600;font-size:14px;margin-bottom:.2rem}
svg{display:block;width:100%;max-width:36rem;height:auto;font-size:12px;overflow:visible}
svg text{fill:var(--soft)}svg text.name{fill:var(--ink);paint-order:stroke;stroke:var(--page);stroke-width:4px;stroke-linejoin:round}
.grid{stroke:var(--rule)}.axis,.reference{stroke:var(--strong)}.reference{stroke-width:1.5}
.series{--c:var(--light)}@media(prefers-color-scheme:dark){.series{--c:var(--dark)}}
.series polyline{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}
.series circle{fill:var(--c);stroke:var(--page)}.series rect{fill:var(--c)}
.series .swatch{stroke:var(--c);stroke-width:3}.series .lead{stroke:var(--c);stroke-opacity:.55}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px;width:100%}
th,td{padding:.2rem .5rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th{font-weight:600;color:var(--soft);background:var(--head)}.l{text-align:left}.w{white-space:normal}
.first td{border-top:2px solid var(--rule)}tbody tr:hover{background:var(--head)}";

/// The whole document around its own style and content.
pub(crate) fn page(
    title: &str,
    host: &Host,
    notes: &[String],
    style: &'static str,
    content: &Markup,
) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(style)) }
            }
            body {
                h1 { (title) }
                p.soft { (host_line(host)) }
                @if !notes.is_empty() {
                    ul { @for note in notes { li { (note) } } }
                }
                (content)
            }
        }
    }
    .into_string()
}

fn host_line(host: &Host) -> String {
    let pinned = host.pinned.map_or_else(
        || "not pinned".to_owned(),
        |(client, server)| format!("client on CPU {client}, server on CPU {server}"),
    );
    format!(
        "{}, {} CPUs, Linux {}, load {:.2} at the start, {pinned}",
        host.cpu, host.cores, host.kernel, host.load
    )
}
