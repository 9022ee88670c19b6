//! `belljar image`: root file systems for boxes.

use std::path::Path;

use belljar_image::{
    Built, Freshness, Image as Stored, ImageError, ImageName, Pruned, Scope, Source, Store,
};
use belljar_supervisor::StateDir;
use serde_json::{Value, json};

use crate::cli::image::{Build, From, Image, Prune};
use crate::cli::{Format, OutputFormat};
use crate::exit::{self, Failure};
use crate::print::{self, Line};

pub(crate) fn image(what: &Image) -> Result<u8, Failure> {
    let state = match what {
        Image::Build(_) => StateDir::find(),
        Image::List { .. } | Image::Prune(_) => StateDir::existing(),
    };
    let store = Store::open(state?.path());
    match what {
        Image::Build(asked) => build(&store, asked),
        Image::List { format } => list(&store, format),
        Image::Prune(asked) => prune(&store, asked),
    }
}

fn build(store: &Store, asked: &Build) -> Result<u8, Failure> {
    let name = ImageName::new(asked.name.as_str()).map_err(ImageError::from)?;
    let freshness = if asked.refresh {
        Freshness::Refresh
    } else {
        Freshness::Cached
    };
    let built = store.build(&name, &source(asked)?, freshness)?;
    let image = built.image();
    let was_cached = matches!(built, Built::Cached(_));
    if asked.format.output == OutputFormat::Json {
        let mut told = described(image);
        told["cached"] = json!(was_cached);
        print::json(&told);
        return Ok(exit::OK);
    }
    // The digest alone goes to standard output, so that a script can put it into a policy.
    print::out(&format!("{}\n", image.digest));
    let how = if was_cached {
        "was there already"
    } else {
        "made"
    };
    let text = format!(
        "image {name} {how}: {} entries, {}",
        image.record.entries,
        bytes(image.record.size)
    );
    print::line(Line::Summary, &text);
    tell_left_out(image);
    Ok(exit::OK)
}

fn tell_left_out(image: &Stored) {
    let left_out = image.record.left_out;
    for (count, what) in [
        (
            left_out.special_files,
            "devices, pipes and sockets are left out",
        ),
        (
            left_out.mounts,
            "directories are empty: something is mounted there",
        ),
        (left_out.set_id_bits, "files are without their set-id bits"),
    ] {
        if count > 0 {
            print::line(Line::Note, &format!("{count} {what}"));
        }
    }
}

fn source(asked: &Build) -> Result<Source, Failure> {
    Ok(match &asked.from {
        From {
            from_dir: Some(directory),
            ..
        } => Source::Directory(directory.clone()),
        From {
            debian: Some(suite),
            ..
        } => Source::Debian {
            suite: suite.clone(),
            include: asked.include.clone(),
        },
        From {
            oci: Some(text), ..
        } => layout(text),
        From {
            engine: Some(reference),
            ..
        } => Source::Engine {
            reference: reference.clone(),
            socket: asked.socket.clone(),
        },
        From { .. } => {
            let hint = "name one: --from-dir, --debian, --oci or --engine";
            return Err(Failure::Invalid("no source".into(), hint.into()));
        }
    })
}

/// A layout, and behind a colon which of its images. Both may have colons: the layout is what is a directory.
fn layout(text: &str) -> Source {
    let split = text
        .match_indices(':')
        .filter_map(|(at, _)| Some((text.get(..at)?, text.get(at + 1..)?)))
        .find(|(path, _)| Path::new(path).is_dir());
    let (path, reference) = match split {
        Some((path, reference)) if !Path::new(text).is_dir() => (path, Some(reference.to_owned())),
        _ => (text, None),
    };
    Source::Oci {
        layout: path.into(),
        reference,
    }
}

fn list(store: &Store, format: &Format) -> Result<u8, Failure> {
    let images = store.list()?;
    if format.output == OutputFormat::Json {
        let told: Vec<Value> = images.iter().map(described).collect();
        print::json(&json!({"images": told}));
        return Ok(exit::OK);
    }
    print::out(&format!(
        "{:<24}{:<15}{:>11}  {:<26}SOURCE\n",
        "NAME", "DIGEST", "SIZE", "CREATED"
    ));
    for image in &images {
        let name = if image.name.starts_with("sha256:") {
            "-"
        } else {
            &image.name
        };
        print::out(&format!(
            "{name:<24}{:<15}{:>11}  {:<26}{}\n",
            image.digest.short(),
            bytes(image.record.size),
            print::utc(image.record.created_ms),
            print::harmless(&image.record.source),
        ));
    }
    Ok(exit::OK)
}

fn prune(store: &Store, asked: &Prune) -> Result<u8, Failure> {
    let scope = if asked.all {
        Scope::All
    } else if asked.names.is_empty() {
        Scope::Unnamed
    } else {
        let names = asked.names.iter().map(ImageName::new);
        Scope::Names(names.collect::<Result<_, _>>().map_err(ImageError::from)?)
    };
    let pruned = store.prune(&scope)?;
    if asked.format.output == OutputFormat::Json {
        print::json(&removed(&pruned));
        return Ok(exit::OK);
    }
    for name in &pruned.names {
        print::out(&format!("{name}  removed\n"));
    }
    for kept in &pruned.kept {
        let name = kept.name.as_ref().map(ImageName::as_str);
        let name = name.unwrap_or(kept.digest.short());
        print::line(Line::Note, &format!("{name} is in use and stays"));
    }
    let text = format!(
        "removed: {} of images' trees ({}), {} of killed builds",
        pruned.trees.len(),
        bytes(pruned.bytes),
        pruned.leftovers
    );
    print::line(Line::Summary, &text);
    Ok(exit::OK)
}

fn removed(pruned: &Pruned) -> Value {
    let kept = pruned.kept.iter();
    let kept: Vec<Value> = kept
        .map(|kept| json!({"name": kept.name, "digest": kept.digest}))
        .collect();
    json!({
        "names": pruned.names, "trees": pruned.trees, "bytes": pruned.bytes,
        "leftovers": pruned.leftovers, "kept": kept,
    })
}

fn described(image: &Stored) -> Value {
    let mut told = json!(image.record);
    told["name"] = json!(image.name);
    told["tree"] = json!(image.tree);
    told
}

pub(super) fn bytes(count: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.into_iter().find(|(_, unit)| count >= *unit) {
        None => format!("{count} B"),
        Some((name, unit)) => format!("{}.{} {name}", count / unit, count % unit * 10 / unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_units() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (3 << 30, "3.0 GiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }
}
