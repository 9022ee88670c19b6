/** What an agent was refused, and the line that would allow it. */
import type { Denial } from "../../api.ts";
import { count, words } from "../../lib/format.ts";
import { Ago, Copy, Empty, Untrusted } from "../../ui/bits.tsx";

export function Denials({ denials }: { denials: readonly Denial[] }) {
  if (denials.length === 0) {
    return (
      <Empty title="Nothing was refused">
        <p>It has asked for nothing that its policy does not allow.</p>
      </Empty>
    );
  }
  return (
    <ul class="denials">
      {denials.map((denial) => (
        <li key={`${denial.code} ${denial.what}`} class="panel denial">
          <div class="denial-head">
            <span class="tag">{words(denial.kind)}</span>
            <Untrusted text={denial.what} class="mono denial-what" />
            <span class="muted num">
              {count(denial.count)} × · <Ago at={denial.last_at_ms} />
            </span>
          </div>
          <p class="denial-why">
            <Untrusted text={denial.why} /> <Untrusted text={denial.code} class="mono muted" most={64} />
          </p>
          {denial.allow_with ? (
            <div class="allow">
              <span class="muted">To allow it, add</span>
              <code>
                <Untrusted text={denial.allow_with} />
              </code>
              <Copy text={denial.allow_with} />
            </div>
          ) : (
            <p class="muted small-text">No line of policy allows this.</p>
          )}
        </li>
      ))}
    </ul>
  );
}
