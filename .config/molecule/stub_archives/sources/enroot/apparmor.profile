# stub archive: keeps names, options and exit codes of enroot's profile; not the vendor's
/usr/bin/enroot-nsenter flags=(unconfined) { }
