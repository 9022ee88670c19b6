/** What runs in an agent's box. */
import type { AgentView } from "../../api.ts";
import { hasBox } from "../../lib/fleet.ts";
import { bytes, spell, whole } from "../../lib/format.ts";
import { client } from "../../store.ts";
import { Empty, Failed, Loading, Untrusted } from "../../ui/bits.tsx";
import { useAsked } from "../../ui/hooks.ts";

const STATES: Record<string, string> = { R: "running", S: "sleeping", D: "waiting", T: "stopped", Z: "dead" };

export function Processes({ agent }: { agent: AgentView }) {
  const [asked, again] = useAsked(`processes ${agent.id} ${agent.phase}`, () => client.processes(agent.id), 3000);
  if (!hasBox(agent)) return <Empty title="No process is left" />;
  if (asked.is === "loading") return <Loading what="processes" />;
  if (asked.is === "failed") return <Failed problem={asked.problem} onRetry={again} />;
  const { processes } = asked.value;
  if (processes.length === 0) return <Empty title="No process is left" />;
  return (
    <div class="scroll-x" tabIndex={-1}>
      <table class="plain">
        <thead>
          <tr>
            <th class="right">PID</th>
            <th class="right">Parent</th>
            <th>Command</th>
            <th>State</th>
            <th class="right">CPU time</th>
            <th class="right">Memory</th>
            <th class="right">Threads</th>
          </tr>
        </thead>
        <tbody>
          {processes.map((process) => (
            <tr key={process.pid}>
              <td class="right num">{process.pid}</td>
              <td class="right num">{process.parent}</td>
              <td class="process-command">
                <Untrusted text={process.command} class="mono" />
              </td>
              <td>{STATES[process.state] ?? <Untrusted text={process.state} most={8} />}</td>
              <td class="right num">{spell(process.cpu_ms * 1000)}</td>
              <td class="right num">{bytes(process.memory_bytes)}</td>
              <td class="right num">{whole(process.threads)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
