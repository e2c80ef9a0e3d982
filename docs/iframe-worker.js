// Search in pages that are opened as files, and for words that begin with a dash.
//
// A browser starts no worker in a page that it has opened as a file. Here a hidden frame runs the script of the worker
// instead. The name of this file matters: without a script of this name, the plugin "offline" adds one from another host.
"use strict";
(() => {
  // In a query, "-word" would exclude pages, and "word:" would name a field. Neither is what a reader means who looks for
  // an option or pastes a message. Paths in a message are those of the reader.
  const asWords = (query) => {
    const words = query.replace(/[:^~]+/g, " ").trim().split(/\s+/).map((word) => word.replace(/^-+/, ""));
    const others = words.filter((word) => !word.startsWith("/"));
    return (others.length ? others : words).join(" ");
  };

  const withWords = (message) =>
    message && typeof message.data === "string" ? { ...message, data: asWords(message.data) } : message;

  class FrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.addEventListener("load", () => this.run(address), { once: true });
      document.body.append(this.frame);
    }

    run(address) {
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = address;
      script.addEventListener("load", () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((message) => this.postMessage(message));
      });
      inside.document.body.append(script);
    }

    postMessage(message) {
      if (this.waiting) {
        this.waiting.push(message);
      } else {
        const inside = this.frame.contentWindow;
        inside.dispatchEvent(new inside.MessageEvent("message", { data: withWords(message) }));
      }
    }

    terminate() {
      this.frame.remove();
    }
  }

  class WordsWorker extends window.Worker {
    postMessage(message, ...rest) {
      super.postMessage(withWords(message), ...rest);
    }
  }

  window.Worker = location.protocol === "file:" ? FrameWorker : WordsWorker;
})();
