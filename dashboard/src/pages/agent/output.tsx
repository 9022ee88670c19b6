/** What an agent writes, as it writes it. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { OutputStream, Problem } from "../../api.ts";
import { problemOf } from "../../client.ts";
import { output as cleanOutput } from "../../lib/clean.ts";
import { bytes } from "../../lib/format.ts";
import { client } from "../../store.ts";
import { download, Failed, Segments } from "../../ui/bits.tsx";

/** The most characters that are kept here; what is older is asked for again by loading the page. */
const MOST = 512 * 1024;
const EVERY_MS = 1000;

interface Written {
  readonly text: string;
  readonly next: number | undefined;
  readonly dropped: number;
  readonly isEnd: boolean;
}

const NOTHING: Written = { text: "", next: undefined, dropped: 0, isEnd: false };

export function Output({ id }: { id: string }) {
  const [stream, setStream] = useState<OutputStream>("stdout");
  const [follow, setFollow] = useState(true);
  const [wrap, setWrap] = useState(true);
  const [written, problem] = useOutput(id, stream);
  const box = useRef<HTMLPreElement>(null);

  // It goes to the end when there is more.
  useEffect(() => {
    if (follow && box.current !== null) box.current.scrollTop = box.current.scrollHeight;
  }, [written, follow, wrap]);

  // Whoever scrolls up wants to read; whoever comes back to the end wants to follow.
  const scrolled = () => {
    const element = box.current;
    if (element === null) return;
    setFollow(element.scrollHeight - element.scrollTop - element.clientHeight < 24);
  };

  return (
    <section class="panel output">
      <div class="panel-head">
        <Segments<OutputStream>
          label="Stream"
          value={stream}
          options={[
            ["stdout", "Output"],
            ["stderr", "Errors"],
          ]}
          onChange={setStream}
        />
        <label class="check">
          <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} />
          Follow
        </label>
        <label class="check">
          <input type="checkbox" checked={wrap} onChange={(event) => setWrap(event.currentTarget.checked)} />
          Wrap
        </label>
        <span class="grow" />
        <button type="button" class="small" onClick={() => download(`${id}.${stream}.txt`, written.text)}>
          Download
        </button>
      </div>
      {problem === undefined ? null : <Failed problem={problem} />}
      {written.dropped > 0 ? (
        <p class="muted small-text">{bytes(written.dropped)} before this are not kept any more.</p>
      ) : null}
      <pre
        ref={box}
        class={wrap ? "code output-text" : "code output-text nowrap"}
        onScroll={scrolled}
        role="log"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: whoever has no pointer has to be able to scroll it.
        tabIndex={0}
        aria-label="Output"
        aria-live="off"
        dir="ltr"
      >
        {written.text === "" ? (
          <span class="muted">{written.isEnd ? "It wrote nothing." : "Nothing written yet."}</span>
        ) : (
          cleanOutput(written.text)
        )}
      </pre>
      <p class="muted small-text" role="status">
        {written.isEnd ? "End of output." : follow ? "Following." : "Scroll to the end to follow."}
      </p>
    </section>
  );
}

function useOutput(id: string, stream: OutputStream): [Written, Problem | undefined] {
  const [written, setWritten] = useState<Written>(NOTHING);
  const [problem, setProblem] = useState<Problem>();
  useEffect(() => {
    let isOver = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let known = NOTHING;
    setWritten(NOTHING);
    const ask = async () => {
      try {
        const reply = await client.output(id, stream, known.next);
        if (isOver) return;
        setProblem(undefined);
        if (reply.text !== "" || reply.is_end !== known.isEnd || known.next === undefined) {
          known = {
            text: (known.text + reply.text).slice(-MOST),
            next: reply.next,
            dropped: known.next === undefined ? reply.dropped : known.dropped,
            isEnd: reply.is_end,
          };
          setWritten(known);
        }
      } catch (error) {
        if (!isOver) setProblem(problemOf(error));
      }
      if (!isOver && !known.isEnd) timer = setTimeout(ask, EVERY_MS);
    };
    void ask();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [id, stream]);
  return [written, problem];
}
