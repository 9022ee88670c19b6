//! The report: one file, no network, no libraries.

use std::fmt::Write;

use super::plots::{Plot, cell_name, run_name};
use super::{Chosen, escaped, is_alive, shown};
use crate::stats::{Metric, Part, escape, life_counts, morris, rt, sobol};
use crate::store::Results;
use crate::tally::Trace;

/// The most cells in the table.
const MOST_ROWS: usize = 200;
/// Moments of the replay.
const FRAMES: usize = 120;

const STYLE: &str = "
body{font:15px/1.5 system-ui,sans-serif;color:#1f2933;background:#f5f7fa;margin:0}
main{max-width:1340px;margin:0 auto;padding:24px}
h1{font-size:24px;margin:0 0 4px} h2{font-size:18px;margin:32px 0 8px}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(560px,1fr));gap:16px;align-items:start}
figure{margin:0;background:#fff;border:1px solid #d9dee4;border-radius:6px;padding:8px}
figure svg{width:100%;height:auto} figcaption{color:#52606d;padding:0 8px 4px}
.wide{overflow-x:auto;background:#fff;border:1px solid #d9dee4;border-radius:6px}
table{border-collapse:collapse;width:100%} th,td{padding:5px 10px;text-align:right;white-space:nowrap}
th{background:#eef2f6;font-weight:600} td:first-child,th:first-child{text-align:left} tr+tr td{border-top:1px solid #eef2f6}
small{color:#52606d} .bad{color:#a61b1b;font-weight:600} .good{color:#0b6e4f;font-weight:600}
.risk{padding:1px 8px;border-radius:9px;font-size:13px} .low{background:#e3f4ec} .guarded{background:#eef2f6}
.elevated{background:#fdf0d5} .high{background:#fbdcd5} .critical{background:#a61b1b;color:#fff}
input[type=range]{width:100%} code{background:#eef2f6;padding:1px 4px;border-radius:3px}
";

/// The report.
#[must_use]
pub fn html(results: &Results, plots: &[Plot], trace: &Trace, chosen: Chosen) -> String {
    let name = escaped(&results.manifest.experiment);
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Experiment {name}</title><style>{STYLE}</style></head><body><main><h1>Experiment {name}</h1>\
         <small>Belljar {} · {} · seed {} · {} cells × {} runs · config <code>{}</code></small>{}",
        escaped(&results.manifest.version),
        if results.experiment.is_live {
            "real boxes"
        } else {
            "simulated"
        },
        results.manifest.seed,
        results.manifest.points.len(),
        results.manifest.replicates,
        escaped(results.manifest.config_sha256.get(..12).unwrap_or_default()),
        verdict(results) + &kills(results)
    );
    page.push_str("<h2>What happened</h2>");
    page.push_str(&table(results));
    page.push_str("<h2>Pictures</h2><div class=\"grid\">");
    for plot in plots {
        let _ = write!(
            page,
            "<figure>{}<figcaption>{}</figcaption></figure>",
            plot.svg,
            escaped(&plot.caption)
        );
    }
    page.push_str("</div>");
    page.push_str(&replay(results, trace, chosen));
    page.push_str(&sensitivity(results));
    page.push_str("</main></body></html>\n");
    page
}

fn verdict(results: &Results) -> String {
    let mut broken: Vec<&str> = results
        .runs
        .iter()
        .flat_map(|run| run.broken.keys().map(String::as_str))
        .collect();
    broken.sort_unstable();
    broken.dedup();
    if broken.is_empty() {
        "<p class=\"good\">Every control of the contract held in every run.</p>".to_owned()
    } else {
        format!(
            "<p class=\"bad\">Broken: {}.</p>",
            escaped(&broken.join(", "))
        )
    }
}

/// What the kill switch did in all runs together.
fn kills(results: &Results) -> String {
    let Some(escape) = escape(&results.runs) else {
        return String::new();
    };
    // A simulated kill proves nothing about boxes.
    let bound = match results.experiment.is_live {
        true => format!(
            " With 95 % confidence, one escapes with a probability below {} % (Clopper and Pearson).",
            shown(escape.bound * 100.0)
        ),
        false => String::new(),
    };
    format!(
        "<p>The kill switch killed {} workers; {} survived.{bound}</p>",
        escape.kills, escape.survivors
    )
}

fn table(results: &Results) -> String {
    // What no cell says, or what is the same nothing everywhere, needs no column.
    let cells = results.manifest.points.len().min(MOST_ROWS);
    let says = |metric: &Metric| {
        results
            .runs
            .iter()
            .any(|run| metric.of(run).is_some_and(|value| value != 0.0))
    };
    let metrics: Vec<Metric> = Metric::ALL.iter().copied().filter(says).collect();
    let mut text = String::from("<div class=\"wide\"><table><tr><th>cell</th><th>risk</th>");
    for metric in &metrics {
        let _ = write!(
            text,
            "<th title=\"{}\">{}</th>",
            metric.name(),
            metric.label()
        );
    }
    text.push_str("<th>R over time</th></tr>");
    for cell in 0..cells {
        let runs = results.cell(cell as u32);
        let risk = results.risk(cell as u32).word();
        let name = escaped(&cell_name(results, cell));
        let _ = write!(
            text,
            "<tr><td>{name}</td><td><span class=\"risk {risk}\">{risk}</span></td>"
        );
        for metric in &metrics {
            match metric.estimate(runs) {
                Some(e) if e.low == e.high => drop(write!(text, "<td>{}</td>", shown(e.mean))),
                Some(e) => drop(write!(
                    text,
                    "<td>{}<br><small>{} – {}</small></td>",
                    shown(e.mean),
                    shown(e.low),
                    shown(e.high)
                )),
                None => {
                    let why = metric.missing(runs).unwrap_or_default();
                    let _ = write!(text, "<td title=\"{}\">–</td>", escaped(&why));
                }
            }
        }
        let _ = write!(text, "<td>{}</td></tr>", spark(&rt(runs)));
    }
    text.push_str("</table></div>");
    if results.manifest.points.len() > cells {
        let _ = write!(
            text,
            "<small>The first {cells} cells; all are in results.csv.</small>"
        );
    }
    text.push_str("<small>Means of runs; below them the 95 % interval (bootstrap; Wilson for probabilities). ");
    let lives = life_counts(&results.runs);
    let _ = write!(
        text,
        "R is pooled over runs, by the ages at which children come, so that lives that were cut count for as long as they were seen: {} were \
         seen to their end, {} were cut. ∞: what they would still have done is not bounded.</small>",
        lives.over, lives.cut
    );
    text
}

/// A line the size of a word.
fn spark(values: &[Option<f64>]) -> String {
    let most = values.iter().flatten().copied().fold(0.0, f64::max);
    if most == 0.0 {
        return "–".to_owned();
    }
    let mut path = String::new();
    for (at, value) in values.iter().enumerate() {
        let Some(value) = value else { continue };
        let (x, y) = (
            at as f64 * 100.0 / values.len() as f64,
            20.0 - 18.0 * value / most,
        );
        let _ = write!(
            path,
            "{}{x:.1} {y:.1}",
            if path.is_empty() { "M" } else { "L" }
        );
    }
    format!(
        "<svg width=\"100\" height=\"22\" viewBox=\"0 0 100 22\"><path d=\"{path}\" fill=\"none\" stroke=\"#0072b2\"/></svg>"
    )
}

/// One run on a slider: who lives at a moment, by depth.
fn replay(results: &Results, trace: &Trace, chosen: Chosen) -> String {
    let horizon = results.experiment.scenario.horizon_ns as f64 / 1e9;
    let depths = trace
        .lives
        .iter()
        .map(|life| life.depth as usize + 1)
        .max()
        .unwrap_or(1)
        .min(40);
    let mut frames = Vec::with_capacity(FRAMES + 1);
    for frame in 0..=FRAMES {
        let at = horizon * frame as f64 / FRAMES as f64;
        let mut counts = vec![0u32; depths];
        for life in trace.lives.iter().filter(|life| is_alive(life, at)) {
            counts[(life.depth as usize).min(depths - 1)] += 1;
        }
        frames.push(format!(
            "[{}]",
            counts
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(",")
        ));
    }
    format!(
        "<h2>Replay of {name}</h2><figure><input id=\"time\" type=\"range\" min=\"0\" max=\"{FRAMES}\" value=\"0\" aria-label=\"time\">\
         <p id=\"now\" style=\"margin:4px 8px\"></p><svg id=\"bars\" viewBox=\"0 0 1280 {height}\" font-size=\"14\" fill=\"#1f2933\"></svg></figure>\
         <script>const F=[{frames}],H={horizon},N={FRAMES};const most=Math.max(1,...F.flat());\
         const all=F.map(f=>f.reduce((a,b)=>a+b,0));\
         const bars=document.getElementById('bars'),time=document.getElementById('time'),now=document.getElementById('now');\
         function show(){{const f=F[+time.value];now.textContent=(H*time.value/N).toFixed(1)+' s: '+all[+time.value]+' boxes';\
         bars.innerHTML=f.map((n,d)=>`<text x=\"70\" y=\"${{d*26+18}}\" text-anchor=\"end\">depth ${{d}}</text><rect x=\"80\" y=\"${{d*26+4}}\" width=\"${{1120*n/most}}\" height=\"18\" fill=\"#0072b2\"/><text x=\"${{88+1120*n/most}}\" y=\"${{d*26+18}}\">${{n}}</text>`).join('');}}\
         time.addEventListener('input',show);time.value=all.indexOf(Math.max(...all));show();</script>",
        name = escaped(&run_name(results, chosen)),
        height = depths * 26 + 8,
        frames = frames.join(",")
    )
}

fn sensitivity(results: &Results) -> String {
    let mut text = String::new();
    for metric in [Metric::Peak, Metric::Workers] {
        let effects = morris(metric, results);
        if effects.is_empty() {
            continue;
        }
        let _ = write!(
            text,
            "<h2>What moves: {}</h2><div class=\"wide\"><table><tr><th>parameter</th><th>mean size of effect</th><th>mean effect</th><th>spread</th></tr>",
            metric.label()
        );
        for effect in effects {
            let _ = write!(
                text,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escaped(&effect.parameter),
                shown(effect.mu_star),
                shown(effect.mu),
                shown(effect.sigma)
            );
        }
        text.push_str("</table></div>");
    }
    for metric in [Metric::Peak, Metric::Workers] {
        let indices = sobol(metric, results);
        if indices.is_empty() {
            continue;
        }
        let _ = write!(
            text,
            "<h2>Whose doing the variance of {} is</h2><div class=\"wide\"><table><tr><th>parameter</th><th>by itself</th><th>with its effect on others</th></tr>",
            metric.label()
        );
        for index in indices {
            let part = |part: Part| {
                format!(
                    "{}<br><small>{} – {}</small>",
                    shown(part.value),
                    shown(part.low),
                    shown(part.high)
                )
            };
            let _ = write!(
                text,
                "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
                escaped(&index.parameter),
                part(index.first),
                part(index.total)
            );
        }
        text.push_str("</table></div>");
    }
    text
}
