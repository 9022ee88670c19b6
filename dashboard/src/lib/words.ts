/** A command line as people type it, taken apart: quotes hold words together, a backslash the next letter. No shell reads it. */
export function splitWords(text: string): string[] | undefined {
  const words: string[] = [];
  let word: string | undefined;
  let quote = "";
  for (let at = 0; at < text.length; at += 1) {
    const letter = text.charAt(at);
    if (quote === "'" && letter !== "'") word = (word ?? "") + letter;
    else if (letter === "\\" && quote !== "'") {
      at += 1;
      if (at >= text.length) return undefined;
      word = (word ?? "") + text.charAt(at);
    } else if (letter === quote) quote = "";
    else if (quote !== "") word = (word ?? "") + letter;
    else if (letter === "'" || letter === '"') {
      quote = letter;
      word ??= "";
    } else if (/\s/.test(letter)) {
      if (word !== undefined) words.push(word);
      word = undefined;
    } else word = (word ?? "") + letter;
  }
  if (quote !== "") return undefined;
  if (word !== undefined) words.push(word);
  return words;
}
