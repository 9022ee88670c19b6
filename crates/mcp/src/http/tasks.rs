//! Tasks of several servers at one address: `server__id`, as their tools are. A client hears of them by such ids, and by such an
//! id its question finds the server again; no server hears the ids of another.

use super::merge::SEAM;
use crate::message::Message;
use serde_json::Value;

/// Says which task a message is about.
const RELATED: &str = "io.modelcontextprotocol/related-task";

/// Names the tasks that a server's message tells of. `asked` is the method that it answers, if it is an answer.
pub(super) fn expose(server: &str, message: &mut Message, asked: Option<&str>) {
    let name = |id: Option<&mut Value>| {
        if let Some(id) = id
            && let Some(own) = id.as_str()
        {
            *id = format!("{server}{SEAM}{own}").into();
        }
    };
    // What a server *asks* about tasks is about the client's.
    let is_news = message.method().starts_with("notifications/tasks");
    if let Some(params) = message.params_mut() {
        name(related(params.get_mut("_meta")));
        if is_news {
            name(params.get_mut("taskId"));
        }
    }
    let Some(result) = message.result_mut().filter(|result| result.is_object()) else {
        return;
    };
    name(related(result.get_mut("_meta")));
    match asked {
        Some("tools/call") => {
            name(
                result
                    .get_mut("task")
                    .and_then(|task| task.get_mut("taskId")),
            );
            if result.get("resultType").is_some_and(|kind| kind == "task") {
                name(result.get_mut("taskId"));
            }
        }
        Some("tasks/list") => {
            let tasks = result.get_mut("tasks").and_then(Value::as_array_mut);
            for task in tasks.into_iter().flatten() {
                name(task.get_mut("taskId"));
            }
        }
        Some("tasks/get" | "tasks/cancel" | "tasks/update") => name(result.get_mut("taskId")),
        _ => {}
    }
}

/// Says to a server by its own id which of its tasks a client's message is about. Of another's it hears nothing.
pub(super) fn own(server: &str, message: &mut Message) {
    let is_question = !message.method().is_empty();
    let meta = match is_question {
        true => message.params_mut().and_then(|all| all.get_mut("_meta")),
        false => message.result_mut().and_then(|all| all.get_mut("_meta")),
    };
    let Some(meta) = meta.and_then(Value::as_object_mut) else {
        return;
    };
    let Some(related) = meta.get_mut(RELATED) else {
        return;
    };
    let id = related.get("taskId").and_then(Value::as_str);
    let own = id
        .and_then(|id| id.split_once(SEAM))
        .filter(|(of, _)| *of == server)
        .map(|(_, own)| own.to_owned());
    match own {
        Some(own) => related["taskId"] = own.into(),
        None => {
            meta.remove(RELATED);
        }
    }
}

fn related(meta: Option<&mut Value>) -> Option<&mut Value> {
    meta?.get_mut(RELATED)?.get_mut("taskId")
}
