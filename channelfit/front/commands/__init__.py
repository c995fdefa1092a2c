"""The work of the verbs, a file each: it calls the public function, writes files and prints."""
