//! What a call holds beside its text: pictures, sound, and things that are elsewhere.

use serde_json::{Map, Value};

use super::json::at;

const SOUND: &str = "sound";

/// What a prompt holds beside its text.
#[derive(Default)]
pub(super) struct Found {
    pub(super) pictures: u64,
    /// What costs more than text does.
    pub(super) dear: Option<&'static str>,
    /// Something that is not in the call itself, so that its length says nothing.
    pub(super) elsewhere: bool,
}

impl Found {
    pub(super) fn look_at_call(&mut self, fields: &Map<String, Value>) {
        // Descriptions of tools and answers: text, whatever their fields are called.
        const TEXT: [&str; 4] = ["tools", "functions", "response_format", "metadata"];
        for (key, value) in fields {
            if !TEXT.contains(&key.as_str()) {
                self.field(key, value);
                self.look(value);
            }
        }
    }

    fn look(&mut self, value: &Value) {
        match value {
            Value::Array(list) => list.iter().for_each(|item| self.look(item)),
            Value::Object(fields) => {
                let used = at(fields, "type") == "tool_use";
                for (key, value) in fields {
                    // What a tool was called with is text, too.
                    if used && key == "input" || key == "functionCall" || key == "function_call" {
                        continue;
                    }
                    self.field(key, value);
                    self.look(value);
                }
            }
            _ => {}
        }
    }

    fn field(&mut self, key: &str, value: &Value) {
        match key {
            _ if value.is_null() => {}
            "previous_response_id"
            | "conversation"
            | "file_id"
            | "file_url"
            | "input_file"
            | "cachedContent"
            | "cached_content"
            | "video_url" => {
                self.elsewhere = true;
            }
            "prompt" if value.is_object() => self.elsewhere = true,
            "image_url" => self.picture(),
            "input_audio" | "audio" | "audio_url" | "speechConfig" | "speech_config" => {
                self.dear = Some(SOUND);
            }
            "imageConfig" | "image_config" => self.dear = Some("pictures as an answer"),
            "inlineData" | "inline_data" => match media(value) {
                Some(mime) if mime.starts_with("image/") => self.picture(),
                Some(mime) if mime.starts_with("audio/") || mime.starts_with("video/") => {
                    self.dear = Some(SOUND);
                }
                _ => self.elsewhere = true,
            },
            // A film needs no type, and what is heard in it costs more than what is read.
            "fileData" | "file_data" if value.is_object() => match media(value) {
                Some(mime)
                    if ["image/", "text/", "application/"]
                        .iter()
                        .any(|kind| mime.starts_with(kind)) =>
                {
                    self.elsewhere = true;
                }
                _ => self.dear = Some(SOUND),
            },
            "type" => match value.as_str() {
                Some("image" | "input_image") => self.picture(),
                Some("input_audio" | "audio" | "audio_url") => self.dear = Some(SOUND),
                Some(
                    "document" | "file" | "input_file" | "item_reference" | "container_upload"
                    | "video" | "video_url" | "input_video",
                ) => self.elsewhere = true,
                _ => {}
            },
            "file_data" | "fileData" => self.elsewhere = true,
            "modalities" | "responseModalities" | "response_modalities" => {
                let plain = |kind: &Value| {
                    kind.as_str()
                        .is_some_and(|kind| kind.eq_ignore_ascii_case("text"))
                };
                if !value.as_array().is_some_and(|list| list.iter().all(plain)) {
                    self.dear = Some("sound or pictures as an answer");
                }
            }
            _ => {}
        }
    }

    fn picture(&mut self) {
        self.pictures = self.pictures.saturating_add(1);
    }
}

fn media(value: &Value) -> Option<String> {
    let mime = at(value, "mimeType").as_str();
    let mime = mime.or_else(|| at(value, "mime_type").as_str())?;
    Some(mime.to_ascii_lowercase())
}
