// Draws each interactive panel when it comes near the screen; the library is vega-embed.
const options = { renderer: "svg", actions: false, tooltip: { disableDefaultStyle: true } };
const observer = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    observer.unobserve(target);
    const panel = JSON.parse(target.querySelector("script").textContent);
    vegaEmbed(target, panel, options).catch((error) => { target.textContent = `The plot cannot be drawn: ${error.message}`; });
  }
}, { rootMargin: "600px" });
for (const panel of document.querySelectorAll("[data-panel]")) observer.observe(panel);
