import { render } from "preact";
import { App } from "./app.tsx";
import { listen } from "./router.ts";
import { begin } from "./store.ts";
import "./style/theme.css";
import "./style/base.css";
import "./style/parts.css";
import "./style/groups.css";
import "./style/fleet.css";
import "./style/pages.css";
import "./style/proposals.css";
import { applyTheme } from "./theme.ts";

applyTheme();
listen();
const place = document.getElementById("app");
if (place !== null) render(<App />, place);
void begin();
