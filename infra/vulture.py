"""Names that `make dead` reports as unused although they are used, with their users."""

_ = object()

# Hyper-parameters, read by name as h["..."].
_.entropy_backup
_.critic_penalty

# Attributes and methods used by a library.
_.create_system  # zipfile
_.linkname  # tarfile
_.text_factory  # sqlite3
_.predict_best_action  # d3rlpy
_.backfill  # prefect.yaml
_.exc_text  # logging
_.copybufsize  # tarfile
_.initial_status, _.headloss, _.global_efficiency, _.hydraulic_timestep, _.report_timestep, _.pattern_timestep  # WNTR
_.writeable  # NumPy
_.writable, _.seekable, _.readinto  # io.RawIOBase
_.daemon_threads, _.request_queue_size, _.service_actions  # socketserver
_.load_context  # MLflow
_.progress_bars  # Great Expectations
_.filters  # Jinja
(
    _.log_message,
    _.do_POST,
    _.do_GET,
    _.do_PATCH,
    _.do_DELETE,
    _.address_string,
    _.protocol_version,
    _.close_connection,
)  # http.server
_.handle_starttag, _.handle_endtag, _.handle_data  # html.parser
_.get_filename, _.get_data  # importlib
_.copybufsize  # tarfile
_.initial_status, _.headloss, _.global_efficiency  # wntr
_.hydraulic_timestep, _.report_timestep, _.pattern_timestep  # wntr

# Fields that are written as JSON, shown by a template, or compared with their whole object.
_.type_, _.predicateType, _.protocol, _.nonClaims  # a certificate's statement
_.ledger_size  # `neorl report --from --to --json`
_.approved_by  # `neorl history --json`
_.removed  # `neorl prune --json`
_.mean_covered  # the dataset card
_.device, _.inode  # state of a shard's file; `run.json` of `neorl train`
_.card_record, _.quarantine_files  # files that belong to a dataset
_.least_margins  # a retraining's outcome
_.tone, _.non_claims, _.claims, _.absent  # the report

# Found by name in a child process, or imported only to be loaded.
_.load_run_file
_.tasks
_.pycache_prefix, _.dont_write_bytecode  # read by the interpreter

# Found by name in a table of modules.
_.DISCRETE_BC
_.DISCRETE_CQL
