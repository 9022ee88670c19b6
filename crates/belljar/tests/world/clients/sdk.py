"""Calls models with the providers' own libraries, unmodified, with the key that the environment holds.

usage: sdk.py WAY PROMPT COUNT…    calls so often at once; prints a line for each: `WAY ok TOKENS` or `WAY refused STATUS TYPE`
"""

import os
import sys
import threading

import requests

OPENAI, CLAUDE, GEMINI = "gpt-4o-mini", "claude-sonnet-4-5", "gemini-2.5-flash"
MOST = 50
LOCK = threading.Lock()


def say(*words):
    with LOCK:
        print(*words, flush=True)


def openai_client():
    import openai

    # Its own retries would hide how often a call was refused.
    return openai.OpenAI(max_retries=0)


def chat(prompt):
    messages = [{"role": "user", "content": prompt}]
    answer = openai_client().chat.completions.create(model=OPENAI, messages=messages, max_tokens=MOST)
    return answer.usage.completion_tokens


def chat_stream(prompt):
    """Nobody asks for usage here, so nobody must see it either."""
    messages = [{"role": "user", "content": prompt}]
    words = 0
    for chunk in openai_client().chat.completions.create(model=OPENAI, messages=messages, max_tokens=MOST, stream=True):
        assert chunk.choices, "a chunk that was not asked for"
        assert chunk.usage is None
        words += bool(chunk.choices[0].delta.content)
    return words


def chat_stream_with_usage(prompt):
    messages = [{"role": "user", "content": prompt}]
    options = {"include_usage": True}
    stream = openai_client().chat.completions.create(
        model=OPENAI, messages=messages, max_tokens=MOST, stream=True, stream_options=options
    )
    return [chunk.usage for chunk in stream][-1].completion_tokens


def responses(prompt):
    answer = openai_client().responses.create(model=OPENAI, input=prompt, max_output_tokens=MOST)
    return answer.usage.output_tokens


def responses_stream(prompt):
    for event in openai_client().responses.create(model=OPENAI, input=prompt, max_output_tokens=MOST, stream=True):
        if event.type == "response.completed":
            return event.response.usage.output_tokens
    raise AssertionError("the stream did not end")


def anthropic_client():
    import anthropic

    return anthropic.Anthropic(max_retries=0)


def messages(prompt):
    asked = [{"role": "user", "content": prompt}]
    return anthropic_client().messages.create(model=CLAUDE, messages=asked, max_tokens=MOST).usage.output_tokens


def messages_stream(prompt):
    asked = [{"role": "user", "content": prompt}]
    with anthropic_client().messages.stream(model=CLAUDE, messages=asked, max_tokens=MOST) as stream:
        return stream.get_final_message().usage.output_tokens


def gemini(prompt, method="generateContent"):
    url = f"https://generativelanguage.googleapis.com/v1beta/models/{GEMINI}:{method}"
    asked = {"contents": [{"role": "user", "parts": [{"text": prompt}]}], "generationConfig": {"maxOutputTokens": MOST}}
    answer = requests.post(url, json=asked, headers={"x-goog-api-key": os.environ["GEMINI_API_KEY"]})
    answer.raise_for_status()
    return answer.text.count("w ")


def gemini_stream(prompt):
    return gemini(prompt, "streamGenerateContent?alt=sse")


def cut(prompt):
    """A stream that its reader leaves in the middle, and then goes on."""
    asked = [{"role": "user", "content": "stall"}]
    stream = openai_client().chat.completions.create(model=OPENAI, messages=asked, max_tokens=MOST, stream=True)
    for _ in range(3):
        next(stream)
    stream.close()
    return chat(prompt)


def cut_messages(prompt):
    asked = [{"role": "user", "content": "stall"}]
    with anthropic_client().messages.stream(model=CLAUDE, messages=asked, max_tokens=MOST) as stream:
        next(iter(stream.text_stream))
    return messages(prompt)


def left_open(prompt):
    """A stream that is still open when its reader ends."""
    asked = [{"role": "user", "content": "stall"}]
    stream = openai_client().chat.completions.create(model=OPENAI, messages=asked, max_tokens=MOST, stream=True)
    next(stream)
    os._exit(0)


def call(name, prompt):
    try:
        say(name, "ok", globals()[name.replace("-", "_")](prompt))
    except Exception as error:
        status = getattr(error, "status_code", None)
        if status is None:
            raise
        body = error.body if isinstance(error.body, dict) else {}
        say(name, "refused", status, body.get("type") or body.get("error", {}).get("type"))


def main():
    words = sys.argv[1:]
    for name, prompt, count in zip(words[::3], words[1::3], words[2::3]):
        threads = [threading.Thread(target=call, args=(name, prompt)) for _ in range(int(count))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


main()
