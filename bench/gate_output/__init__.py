"""A gate's result for people and programs: terminal, Markdown, JUnit XML, JSON, HTML."""
