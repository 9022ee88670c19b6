"""Providers of models, as their own clients know them. What a call used is put down beside what it was told.

A prompt's last word says what the model does: `say-7` answers with seven tokens, `fill` with as many as it may, `stall` begins
a stream and waits for its client to go.
"""

import json
import select

HOSTS = {"api.openai.com": "openai", "api.anthropic.com": "anthropic", "generativelanguage.googleapis.com": "gemini"}
CACHED = 4
# What a model gives when nobody says how much.
USUAL = 12


def serves(name):
    return name in HOSTS


def answer(web, path, body, journal):
    asked = json.loads(body or b"{}")
    for shape in (chat, responses, messages, gemini):
        if shape.__name__ in ROUTES and any(part in path for part in ROUTES[shape.__name__]):
            shape(web, path, asked, journal)
            return
    web.give(404, b'{"error": {"message": "no such route"}}', {"Content-Type": "application/json"})


ROUTES = {
    "chat": ["/chat/completions"],
    "responses": ["/v1/responses"],
    "messages": ["/v1/messages"],
    "gemini": ["enerateContent"],
}


def wanted(prompt, most):
    """How many tokens to answer with, and whether to stall."""
    word = prompt.split()[-1] if prompt.split() else ""
    if word.startswith("say-"):
        count = int(word[4:])
    elif word == "fill":
        count = most
    else:
        count = USUAL
    return (min(count, most) if most else count), word == "stall"


class Events:
    """A stream of events, one chunk each."""

    def __init__(self, web):
        self.web = web
        web.begin({"Content-Type": "text/event-stream"})

    def raw(self, text):
        self.web.part(text.encode())

    def send(self, message, event=None):
        self.raw((f"event: {event}\n" if event else "") + f"data: {json.dumps(message)}\n\n")

    def end(self):
        self.web.end()

    def stall(self, journal):
        """Until the client is gone."""
        select.select([self.web.connection], [], [])
        journal.note(kind="gone")
        self.web.close_connection = True


def give(web, message):
    web.give(200, json.dumps(message).encode(), {"Content-Type": "application/json"})


def count_prompt(asked):
    """Fewer than its bytes, as every tokenizer has it."""
    return 10 + len(json.dumps(asked)) // 8


def text_of(content):
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content or [])


def note(journal, api, model, prompt, cached, output):
    journal.note(kind="usage", api=api, model=model, input=prompt, cached=cached, output=output)


def chat(web, path, asked, journal):
    most = asked.get("max_completion_tokens") or asked.get("max_tokens")
    output, stalls = wanted(text_of(asked["messages"][-1]["content"]), most)
    prompt = count_prompt(asked["messages"])
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": CACHED},
    }
    base = {"id": "chatcmpl-1", "created": 1, "model": asked["model"]}
    if not asked.get("stream"):
        note(journal, "chat", asked["model"], prompt - CACHED, CACHED, output)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "w " * output}}
        give(web, base | {"object": "chat.completion", "choices": [choice], "usage": usage})
        return
    events = Events(web)
    base["object"] = "chat.completion.chunk"
    for _ in range(output):
        events.send(base | {"choices": [{"index": 0, "delta": {"content": "w "}, "finish_reason": None}]})
    if stalls:
        events.stall(journal)
        return
    events.send(base | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    note(journal, "chat", asked["model"], prompt - CACHED, CACHED, output)
    if (asked.get("stream_options") or {}).get("include_usage"):
        events.send(base | {"choices": [], "usage": usage})
    events.raw("data: [DONE]\n\n")
    events.end()


def responses(web, path, asked, journal):
    given = asked["input"] if isinstance(asked["input"], str) else text_of(asked["input"][-1]["content"])
    output, stalls = wanted(given, asked.get("max_output_tokens"))
    prompt = count_prompt(asked["input"])
    usage = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": CACHED},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": prompt + output,
    }
    part = {"type": "output_text", "text": "w " * output, "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    whole = {
        "id": "resp_1", "object": "response", "created_at": 1, "model": asked["model"], "status": "completed",
        "output": [item], "usage": usage, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }
    if not asked.get("stream"):
        note(journal, "responses", asked["model"], prompt - CACHED, CACHED, output)
        give(web, whole)
        return
    events = Events(web)
    started = whole | {"status": "in_progress", "output": [], "usage": None}
    events.send({"type": "response.created", "sequence_number": 0, "response": started}, "response.created")
    begun = {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0}
    events.send(begun | {"item": item | {"status": "in_progress", "content": []}}, "response.output_item.added")
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    opened = place | {"type": "response.content_part.added", "sequence_number": 2, "part": part | {"text": ""}}
    events.send(opened, "response.content_part.added")
    for number in range(output):
        delta = {"type": "response.output_text.delta", "sequence_number": 3 + number, "delta": "w ", "logprobs": []}
        events.send(delta | place, "response.output_text.delta")
    if stalls:
        events.stall(journal)
        return
    note(journal, "responses", asked["model"], prompt - CACHED, CACHED, output)
    done = {"type": "response.completed", "sequence_number": 3 + output, "response": whole}
    events.send(done, "response.completed")
    events.end()


def messages(web, path, asked, journal):
    output, stalls = wanted(text_of(asked["messages"][-1]["content"]), asked.get("max_tokens"))
    prompt = count_prompt(asked["messages"])
    usage = {
        "input_tokens": prompt,
        "output_tokens": output,
        "cache_read_input_tokens": CACHED,
        "cache_creation_input_tokens": 0,
    }
    base = {"id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"], "stop_sequence": None}
    if not asked.get("stream"):
        note(journal, "messages", asked["model"], prompt, CACHED, output)
        content = [{"type": "text", "text": "w " * output}]
        give(web, base | {"content": content, "stop_reason": "end_turn", "usage": usage})
        return
    events = Events(web)
    started = base | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    events.send({"type": "message_start", "message": started}, "message_start")
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    events.send(block, "content_block_start")
    for _ in range(output):
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "w "}}
        events.send(delta, "content_block_delta")
    if stalls:
        events.stall(journal)
        return
    events.send({"type": "content_block_stop", "index": 0}, "content_block_stop")
    note(journal, "messages", asked["model"], prompt, CACHED, output)
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    events.send({"type": "message_delta", "delta": ended, "usage": {"output_tokens": output}}, "message_delta")
    events.send({"type": "message_stop"}, "message_stop")
    events.end()


def gemini(web, path, asked, journal):
    model = path.split("/models/")[1].split(":")[0]
    most = asked.get("generationConfig", {}).get("maxOutputTokens")
    output, _ = wanted(text_of(asked["contents"][-1]["parts"]), most)
    prompt = count_prompt(asked["contents"])
    usage = {
        "promptTokenCount": prompt,
        "cachedContentTokenCount": CACHED,
        "candidatesTokenCount": output - 1,
        "thoughtsTokenCount": 1,
        "totalTokenCount": prompt + output,
    }
    note(journal, "gemini", model, prompt - CACHED, CACHED, output)

    def part(text):
        return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}}], "modelVersion": model}

    if "stream" not in path:
        give(web, part("w " * output) | {"usageMetadata": usage})
        return
    events = Events(web)
    for number in range(output - 1):
        events.send(part("w ") | {"usageMetadata": usage | {"candidatesTokenCount": number, "thoughtsTokenCount": 0}})
    last = part("w ")
    last["candidates"][0]["finishReason"] = "STOP"
    events.send(last | {"usageMetadata": usage})
    events.end()
