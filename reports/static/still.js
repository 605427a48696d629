// Pages that only need a choice of colours.

setUpTheme();
document.documentElement.dataset.ready = 'yes';
