"""HTML reports, index, web server, JUnit."""
