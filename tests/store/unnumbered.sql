-- A store as the version before the migrations wrote it, through its own Store, Exchanges and
-- SessionRows: runs in every state, their events, questions, approvals, orders, and two sessions.
-- Its tables have no number: PRAGMA user_version is 0.
BEGIN TRANSACTION;
CREATE TABLE approvals (
    call_id TEXT NOT NULL, run_id TEXT NOT NULL, tool TEXT NOT NULL, input TEXT NOT NULL,
    decision TEXT NOT NULL, asked REAL NOT NULL, deadline REAL NOT NULL, new_input TEXT,
    message TEXT NOT NULL DEFAULT '', PRIMARY KEY (run_id, call_id)) WITHOUT ROWID;
INSERT INTO "approvals" VALUES('c-no','r-completed','Bash','{"command": "ls -R /"}','rejected',1006.0,4606.0,NULL,'not today');
INSERT INTO "approvals" VALUES('c-yes','r-completed','Bash','{"command": "ls -R /"}','approved',1006.0,4606.0,'{"command": "ls"}','');
INSERT INTO "approvals" VALUES('c-open','r-paused','Bash','{"command": "rm -r build"}','pending',1005.0,4605.0,NULL,'');
CREATE TABLE events (
    run_id TEXT NOT NULL, seq INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL,
    text TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (run_id, seq)) WITHOUT ROWID;
INSERT INTO "events" VALUES('r-cancelled',1,1000.5,'started','the CLI runs','{}');
INSERT INTO "events" VALUES('r-cancelled',2,1001.5,'tool_call','Bash ls','{"tool": "Bash", "input": {"command": "ls"}}');
INSERT INTO "events" VALUES('r-cancelled',3,1007.0,'ended','cancelled','{"status": "cancelled", "reason": "cancelled"}');
INSERT INTO "events" VALUES('r-completed',1,1000.5,'started','the CLI runs','{}');
INSERT INTO "events" VALUES('r-completed',2,1001.5,'tool_call','Bash ls','{"tool": "Bash", "input": {"command": "ls"}}');
INSERT INTO "events" VALUES('r-completed',3,1007.0,'ended','completed','{"status": "completed", "reason": "ok"}');
INSERT INTO "events" VALUES('r-failed',1,1000.5,'started','the CLI runs','{}');
INSERT INTO "events" VALUES('r-failed',2,1001.5,'tool_call','Bash ls','{"tool": "Bash", "input": {"command": "ls"}}');
INSERT INTO "events" VALUES('r-failed',3,1007.0,'ended','failed','{"status": "failed", "reason": "machinery"}');
INSERT INTO "events" VALUES('r-parent_replied',1,1000.5,'started','the CLI runs','{}');
INSERT INTO "events" VALUES('r-parent_replied',2,1001.5,'tool_call','Bash ls','{"tool": "Bash", "input": {"command": "ls"}}');
INSERT INTO "events" VALUES('r-paused',1,1000.5,'started','the CLI runs','{}');
INSERT INTO "events" VALUES('r-paused',2,1001.5,'tool_call','Bash ls','{"tool": "Bash", "input": {"command": "ls"}}');
INSERT INTO "events" VALUES('r-running',1,1000.5,'started','the CLI runs','{}');
INSERT INTO "events" VALUES('r-running',2,1001.5,'tool_call','Bash ls','{"tool": "Bash", "input": {"command": "ls"}}');
INSERT INTO "events" VALUES('r-timed_out',1,1000.5,'started','the CLI runs','{}');
INSERT INTO "events" VALUES('r-timed_out',2,1001.5,'tool_call','Bash ls','{"tool": "Bash", "input": {"command": "ls"}}');
INSERT INTO "events" VALUES('r-timed_out',3,1007.0,'ended','timed_out','{"status": "timed_out", "reason": "deadline"}');
INSERT INTO "events" VALUES('r-waiting_parent_reply',1,1000.5,'started','the CLI runs','{}');
INSERT INTO "events" VALUES('r-waiting_parent_reply',2,1001.5,'tool_call','Bash ls','{"tool": "Bash", "input": {"command": "ls"}}');
CREATE TABLE orders (
    order_id INTEGER PRIMARY KEY, run_id TEXT NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL,
    created REAL NOT NULL, taken REAL);
INSERT INTO "orders" VALUES(1,'r-running','say','Hurry up.',1.79496212920680904383e+09,NULL);
INSERT INTO "orders" VALUES(2,'r-paused','cancel','',1.79496212920702576639e+09,1.79496212921423292166e+09);
INSERT INTO "orders" VALUES(3,'r-completed','say','Thank you.',1.79496212920720028881e+09,NULL);
CREATE TABLE questions (
    message_id TEXT PRIMARY KEY, run_id TEXT NOT NULL, question TEXT NOT NULL,
    status TEXT NOT NULL, asked REAL NOT NULL, deadline REAL NOT NULL,
    default_answer TEXT NOT NULL, answer TEXT, answered REAL);
INSERT INTO "questions" VALUES('m-open','r-waiting_parent_reply','Which colour?','pending_parent_reply',1002.0,4602.0,'red',NULL,NULL);
INSERT INTO "questions" VALUES('m-answered','r-parent_replied','Which size?','parent_replied',1003.0,4603.0,'','large',1.79496212919899415967e+09);
INSERT INTO "questions" VALUES('m-read','r-completed','Which shape?','acknowledged_by_subagent',1004.0,4604.0,'','round',1.7949621291994125843e+09);
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, agent TEXT NOT NULL, caller TEXT NOT NULL, status TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '', owner TEXT NOT NULL, task TEXT NOT NULL, result TEXT,
    created REAL NOT NULL, ended REAL);
INSERT INTO "runs" VALUES('r-pending','coder','main','pending','','o1','{"agent":"coder","prompt":"Be pending.","context":"","workspace":"/srv/project","session":"","caller":"main","timeout_seconds":null,"after":["r-completed"],"parent_run_id":"","budget_usd":null,"depth":0,"run_id":"r-pending"}',NULL,1.79496212916411089898e+09,NULL);
INSERT INTO "runs" VALUES('r-running','coder','main','running','','o1','{"agent":"coder","prompt":"Be running.","context":"","workspace":"/srv/project","session":"","caller":"main","timeout_seconds":null,"after":[],"parent_run_id":"","budget_usd":null,"depth":0,"run_id":"r-running"}',NULL,1.79496212916492533682e+09,NULL);
INSERT INTO "runs" VALUES('r-paused','coder','main','paused','','o1','{"agent":"coder","prompt":"Be paused.","context":"","workspace":"/srv/project","session":"","caller":"main","timeout_seconds":null,"after":[],"parent_run_id":"r-running","budget_usd":null,"depth":0,"run_id":"r-paused"}',NULL,1.79496212917277288443e+09,NULL);
INSERT INTO "runs" VALUES('r-waiting_parent_reply','coder','main','waiting_parent_reply','','o1','{"agent":"coder","prompt":"Be waiting_parent_reply.","context":"","workspace":"/srv/project","session":"","caller":"main","timeout_seconds":null,"after":[],"parent_run_id":"","budget_usd":null,"depth":0,"run_id":"r-waiting_parent_reply"}',NULL,1.79496212917999386788e+09,NULL);
INSERT INTO "runs" VALUES('r-parent_replied','coder','main','parent_replied','','o1','{"agent":"coder","prompt":"Be parent_replied.","context":"","workspace":"/srv/project","session":"","caller":"main","timeout_seconds":null,"after":[],"parent_run_id":"","budget_usd":null,"depth":0,"run_id":"r-parent_replied"}',NULL,1.79496212918096041677e+09,NULL);
INSERT INTO "runs" VALUES('r-completed','coder','cron','completed','ok','o1','{"agent":"coder","prompt":"Be completed.","context":"","workspace":"/srv/project","session":"side","caller":"cron","timeout_seconds":null,"after":[],"parent_run_id":"","budget_usd":null,"depth":0,"run_id":"r-completed"}','{"run_id":"r-completed","agent":"coder","caller":"cron","status":"completed","reason":"ok","message":"","result":{"done":true},"partial_text":"","schema_errors":[],"attempts":0,"duration_ms":0,"cost_usd":0.25,"usage":{"input_tokens":10,"output_tokens":5,"cache_read_tokens":0,"cache_write_tokens":0,"cost_usd":0.25,"requests":2},"model":"","session_id":"","session":"","session_note":"","denied_tools":[],"denied_hosts":[],"failed_mcp_servers":[],"changed_files":[{"path":"a.txt","change":"added","old_path":""}],"patch":"","warnings":["one"],"log_tail":[]}',1.79496212918199920657e+09,1.79496212920744395253e+09);
INSERT INTO "runs" VALUES('r-failed','coder','main','failed','machinery','o1','{"agent":"coder","prompt":"Be failed.","context":"","workspace":"/srv/project","session":"","caller":"main","timeout_seconds":null,"after":[],"parent_run_id":"","budget_usd":null,"depth":0,"run_id":"r-failed"}','{"run_id":"r-failed","agent":"coder","caller":"main","status":"failed","reason":"machinery","message":"It did not work.","result":null,"partial_text":"","schema_errors":[],"attempts":0,"duration_ms":0,"cost_usd":0.25,"usage":{"input_tokens":10,"output_tokens":5,"cache_read_tokens":0,"cache_write_tokens":0,"cost_usd":0.25,"requests":2},"model":"","session_id":"","session":"","session_note":"","denied_tools":[],"denied_hosts":[],"failed_mcp_servers":[],"changed_files":[{"path":"a.txt","change":"added","old_path":""}],"patch":"","warnings":["one"],"log_tail":[]}',1794962129.18586,1.79496212921099710466e+09);
INSERT INTO "runs" VALUES('r-cancelled','coder','main','cancelled','cancelled','o1','{"agent":"coder","prompt":"Be cancelled.","context":"","workspace":"/srv/project","session":"","caller":"main","timeout_seconds":null,"after":[],"parent_run_id":"","budget_usd":null,"depth":0,"run_id":"r-cancelled"}','{"run_id":"r-cancelled","agent":"coder","caller":"main","status":"cancelled","reason":"cancelled","message":"It did not work.","result":null,"partial_text":"","schema_errors":[],"attempts":0,"duration_ms":0,"cost_usd":0.25,"usage":{"input_tokens":10,"output_tokens":5,"cache_read_tokens":0,"cache_write_tokens":0,"cost_usd":0.25,"requests":2},"model":"","session_id":"","session":"","session_note":"","denied_tools":[],"denied_hosts":[],"failed_mcp_servers":[],"changed_files":[{"path":"a.txt","change":"added","old_path":""}],"patch":"","warnings":["one"],"log_tail":[]}',1.79496212919265723225e+09,1.79496212921133780479e+09);
INSERT INTO "runs" VALUES('r-timed_out','coder','main','timed_out','deadline','o1','{"agent":"coder","prompt":"Be timed_out.","context":"","workspace":"/srv/project","session":"","caller":"main","timeout_seconds":null,"after":[],"parent_run_id":"","budget_usd":null,"depth":0,"run_id":"r-timed_out"}','{"run_id":"r-timed_out","agent":"coder","caller":"main","status":"timed_out","reason":"deadline","message":"It did not work.","result":null,"partial_text":"","schema_errors":[],"attempts":0,"duration_ms":0,"cost_usd":0.25,"usage":{"input_tokens":10,"output_tokens":5,"cache_read_tokens":0,"cache_write_tokens":0,"cost_usd":0.25,"requests":2},"model":"","session_id":"","session":"","session_note":"","denied_tools":[],"denied_hosts":[],"failed_mcp_servers":[],"changed_files":[{"path":"a.txt","change":"added","old_path":""}],"patch":"","warnings":["one"],"log_tail":[]}',1.79496212919346618654e+09,1.79496212921164369582e+09);
CREATE TABLE sessions (
    agent TEXT NOT NULL, caller TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
    owner TEXT NOT NULL, conversation TEXT NOT NULL, runs INTEGER NOT NULL, created REAL NOT NULL,
    used REAL NOT NULL, expires REAL NOT NULL, wanted INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (agent, caller, name)) WITHOUT ROWID;
INSERT INTO "sessions" VALUES('coder','cron','side','stopped','o1','conversation-1',1,1.79496212921478366848e+09,1.79496212921621799466e+09,1.79496572921621799466e+09,1);
INSERT INTO "sessions" VALUES('coder','main','default','running','o1','',0,1.7949621292144787312e+09,1.7949621292144787312e+09,1.79496218921447873119e+09,0);
CREATE INDEX runs_by_time ON runs (created);
CREATE INDEX runs_by_all ON runs (caller, agent, status, created);
CREATE INDEX runs_by_parent ON runs (json_extract(task, '$.parent_run_id'));
CREATE INDEX runs_under_way ON runs (created) WHERE ended IS NULL;
CREATE INDEX runs_by_agent ON runs (agent, created);
CREATE INDEX runs_by_status ON runs (status, created);
CREATE INDEX runs_by_caller ON runs (caller, created);
CREATE INDEX questions_by_run ON questions (run_id);
CREATE INDEX open_orders ON orders (taken, run_id);
CREATE INDEX orders_by_run ON orders (run_id);
COMMIT;
