// Browsers refuse workers to pages that are opened from a disk, and the theme's search is one. There it runs in a hidden
// frame instead. (The theme would fetch such a shim from the network.)
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.send = data => inside.dispatchEvent(new inside.MessageEvent("message", { data }))
      this.ready = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script")
        script.src = new URL(url, location.href).href
        script.onload = resolve
        script.onerror = reject
        inside.document.body.appendChild(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.send(data))
    }
  }
}
