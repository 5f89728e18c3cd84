// play.js: the player as a widget.

function render({ model, el }) {
  const root = h("div", {});
  el.append(root);
  let player = null;
  // Only a player at rest speaks to the kernel: never from within the animation.
  const tell = debounce(() => model.save_changes(), 120);
  let said = {};
  const onRest = (state) => {
    said = state;
    for (const [name, value] of Object.entries(state)) model.set(name, value);
    tell();
  };
  const build = () => {
    player?.dispose();
    const film = new Film(readPacket(model.get("film")));
    player = new Player(root, film, { onRest });
    root.remat = { player, film, clock: player.clock };
    const { speed, position } = { speed: model.get("speed"), position: model.get("position") };
    player.clock.speed = speed;
    player.transport.setSpeed(speed);
    player.clock.seek(position);
  };
  const follow = () => {
    const position = model.get("position");
    if (!player.clock.playing && position !== player.film.position) player.clock.seek(position);
  };
  const run = () => {
    const playing = model.get("playing");
    if (playing === said.playing || playing === player.clock.playing) return;
    if (playing) player.clock.play(); else player.clock.pause();
  };
  const pace = () => {
    player.clock.speed = model.get("speed");
    player.transport.setSpeed(player.clock.speed);
  };
  const listeners = { "change:film": build, "change:position": follow, "change:playing": run, "change:speed": pace };
  build();
  for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
  return () => {
    for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
    tell.cancel();
    player.dispose();
  };
}

const widget = { render };
export default widget;
