"""Views in a notebook: play, explore, race, stepper. Each is one .py, one .js and one .css of its name.

The scripts are plain modules without dependencies, bundled with the package and fetched from nowhere. What
several views need (``film.js``, ``theme.js``, ``graph.js``, ``timeline.js``, ``transport.js``, ``player.js``) is
put in front of a view's own script as text. A view never owns truth: it shows a Trace, a Plan or a Frontier.
"""
