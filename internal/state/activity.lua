-- activity.lua writes down what a worker works on now, and reads what all of them do.
--
-- KEYS  1 working (hash): worker → "{ms of Redis' clock when it was written} {what it said}"
-- ARGV  1 'say'     2 worker   3 what it works on   4 for how long it, or all when nobody says anything, is kept, ms
--         'done'    2 worker, which works on nothing any more
--         'look'    2 what was written so long ago is forgotten, ms
--
-- Returns, of 'look', {now in ms, worker, "{ms} {what it said}", worker, …}; else nothing.
-- Refuses with WRONGTYPE when the key holds something else; nothing changed.

local working = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- old is what was written too long ago, or is from the future: another Redis' clock was ahead of this one's.
local function old(value, ms)
	local at = tonumber(string.match(value, '^%d+') or '') or 0
	return math.abs(now - at) >= tonumber(ms)
end

if ARGV[1] == 'done' then
	redis.call('HDEL', working, ARGV[2])
elseif ARGV[1] == 'say' then
	redis.call('HSET', working, ARGV[2], string.format('%.0f ', now) .. ARGV[3])
	redis.call('PEXPIRE', working, ARGV[4])
	-- One of all at random is looked at: the dead are forgotten even where nobody looks, and nobody who says anything reads all.
	local any = redis.call('HRANDFIELD', working, 1, 'WITHVALUES')
	if any[1] and old(any[2], ARGV[4]) then
		redis.call('HDEL', working, any[1])
	end
else
	local reply = {now}
	local all = redis.call('HGETALL', working)
	for i = 1, #all, 2 do
		if old(all[i + 1], ARGV[2]) then
			redis.call('HDEL', working, all[i])
		else
			reply[#reply + 1], reply[#reply + 2] = all[i], all[i + 1]
		end
	end
	return reply
end
