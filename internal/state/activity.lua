-- activity.lua stores, deletes or lists the workers' reports of their work in progress.
--
-- KEYS  1 working (hash): worker → "{time of the report in ms of Redis' clock} {report}"
-- ARGV  1 'set'     2 worker   3 report   4 expiry of each report, and of the hash without new reports, ms
--         'delete'  2 worker
--         'list'    2 expiry of each report, ms
--
-- Returns {now in ms, worker, "{ms} {report}", worker, …} for 'list', else nothing.
-- Fails with WRONGTYPE if the key is not a hash; nothing is changed.

local working = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- A report has expired if it is too old, or from the future because a former Redis' clock was ahead.
local function expired(value, ms)
	local at = tonumber(string.match(value, '^%d+') or '') or 0
	return math.abs(now - at) >= tonumber(ms)
end

if ARGV[1] == 'delete' then
	redis.call('HDEL', working, ARGV[2])
elseif ARGV[1] == 'set' then
	redis.call('HSET', working, ARGV[2], string.format('%.0f ', now) .. ARGV[3])
	redis.call('PEXPIRE', working, ARGV[4])
	-- Check one random report, so that expired reports are deleted even if nobody lists them.
	local any = redis.call('HRANDFIELD', working, 1, 'WITHVALUES')
	if any[1] and expired(any[2], ARGV[4]) then
		redis.call('HDEL', working, any[1])
	end
else
	local reply = {now}
	local all = redis.call('HGETALL', working)
	for i = 1, #all, 2 do
		if expired(all[i + 1], ARGV[2]) then
			redis.call('HDEL', working, all[i])
		else
			reply[#reply + 1], reply[#reply + 2] = all[i], all[i + 1]
		end
	end
	return reply
end
