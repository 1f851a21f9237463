"""Word lists of the synthetic statutes in `data/sample.py`: invented for this package, copied from no law.

Every actor has two names that mean the same. Objects are papers and records, so that every verb fits every object.
"""

from __future__ import annotations

from dataclasses import dataclass

Name = tuple[str, str]
"""Two words that belong together: the two names of an actor, or a verb and its object."""


@dataclass(frozen=True, slots=True)
class DomainWords:
    """What the laws of one field speak of.

    Attributes:
        actors: Who has duties, each under two equivalent names.
        things: What the duties are about.
        events: Clauses that fit after "sau khi", "nếu" and "trừ khi".
    """

    actors: tuple[Name, ...]
    things: tuple[str, ...]
    events: tuple[str, ...]


VERBS = (
    "lập", "nộp", "công bố", "lưu trữ", "thẩm tra", "xác nhận", "cập nhật", "đăng ký", "bàn giao",
    "phê duyệt", "thu hồi", "sửa đổi", "kiểm tra", "sao chép", "niêm phong", "cung cấp",
)  # fmt: skip

NUMBERS = {
    2: "hai", 3: "ba", 4: "bốn", 5: "năm", 6: "sáu", 7: "bảy", 8: "tám", 10: "mười", 12: "mười hai",
    15: "mười lăm", 20: "hai mươi", 30: "ba mươi", 45: "bốn mươi lăm", 60: "sáu mươi", 90: "chín mươi",
}  # fmt: skip

TIME_UNITS = ("ngày", "tháng", "tuần", "ngày làm việc")
MONEY_UNITS = ("nghìn đồng", "triệu đồng", "đồng", "tỷ đồng")
DAYS = tuple(number for number in NUMBERS if number <= 30)
MONTHS = {3: "ba", 5: "năm", 6: "sáu", 7: "bảy", 8: "tám", 10: "mười", 12: "mười hai"}

SHARED_EVENTS = ("có thiên tai", "có phán quyết của trọng tài", "hết thời gian thử nghiệm", "có khiếu nại")

_RAW: dict[str, tuple[str, str, str]] = {
    "administrative_organization": (
        "hội đồng vùng / cơ quan dân cử của vùng; thị trưởng / người đứng đầu thị chính; "
        "văn phòng thị chính / bộ phận giúp việc thị chính; công chức tiếp dân / cán bộ làm công tác tiếp dân; "
        "ban tinh giản / tổ phụ trách tinh giản biên chế; trưởng thôn / người phụ trách thôn",
        "đề án sáp nhập thôn; biên chế dự phòng; quy chế tiếp dân; lịch họp hội đồng; con dấu thị chính; "
        "danh bạ công vụ; bảng vị trí việc làm; sổ công văn mật; phiếu đánh giá cán bộ",
        "hội đồng vùng giải thể; bầu xong thị trưởng; chia tách thôn; có kết luận thanh tra công vụ",
    ),
    "state_finance": (
        "kho bạc vùng / cơ quan kho bạc cấp vùng; đơn vị dự toán / đơn vị sử dụng ngân sách; "
        "ủy ban ngân quỹ / cơ quan trông coi ngân quỹ; chủ tài khoản công / người đứng tên tài khoản công; "
        "ban mua sắm tập trung / tổ mua sắm tập trung; quỹ dự trữ / đơn vị giữ quỹ dự trữ",
        "dự toán thường xuyên; lệnh chi tiền; báo cáo nợ công; chứng từ tạm ứng; kế hoạch vay lại; "
        "bảng cân đối ngân quỹ; danh mục tài sản công; quyết toán cuối năm; định mức khoán chi",
        "ngân sách bị thâm hụt; kết thúc niên độ; giao bổ sung dự toán; kho bạc từ chối thanh toán",
    ),
    "culture_society": (
        "bảo tàng vùng / đơn vị bảo tàng cấp vùng; ban lễ hội / tổ phụ trách lễ hội; "
        "nghệ nhân / người được công nhận là nghệ nhân; đoàn biểu diễn / đơn vị biểu diễn nghệ thuật; "
        "thư viện cộng đồng / đơn vị quản lý thư viện cộng đồng; trung tâm bảo trợ / cơ sở bảo trợ xã hội",
        "lý lịch di tích; kịch bản lễ hội; bản kiểm kê cổ vật; giấy mời nghệ nhân; chương trình biểu diễn; "
        "thẻ đọc sách; hương ước làng; danh sách hộ nghèo; phim tư liệu dân gian",
        "cổ vật bị hư hại; lễ hội bế mạc; di tích được xếp hạng; đoàn biểu diễn đổi tên",
    ),
    "natural_resources_environment": (
        "trạm quan trắc / đơn vị quan trắc môi trường; chủ mỏ / bên khai thác mỏ; "
        "chủ nguồn thải / cơ sở phát sinh chất thải; ban quản lý rừng / đơn vị trông coi rừng; "
        "cục địa chất / cơ quan phụ trách địa chất; hợp tác xã thủy lợi / tổ chức hợp tác về thủy lợi",
        "bản đồ khoáng sản; phương án đóng cửa mỏ; nhật ký xả thải; kế hoạch trồng rừng; số liệu mực nước; "
        "mẫu đất ô nhiễm; hạn ngạch phát thải; giấy phép khoan giếng; sổ đa dạng sinh học",
        "nguồn nước nhiễm mặn; mỏ ngừng khai thác; xảy ra cháy rừng; vượt ngưỡng khí thải",
    ),
    "real_estate": (
        "chủ chung cư / bên sở hữu chung cư; sàn giao dịch nhà đất / đơn vị vận hành sàn nhà đất; "
        "người môi giới nhà / cá nhân làm nghề môi giới nhà; văn phòng địa chính / cơ quan phụ trách địa chính; "
        "bên thuê mặt bằng / người thuê lại mặt bằng; ban quản trị tòa nhà / tổ quản trị tòa nhà",
        "hợp đồng cọc nhà; sổ hồng căn hộ; bảng giá mặt bằng; sơ đồ thửa đất; quy ước tòa nhà; thẻ môi giới; "
        "quỹ bảo trì; biên bản giao căn hộ; giấy xác nhận quyền lối đi",
        "thửa đất bị tranh chấp; căn hộ được bàn giao; hết hạn thuê mặt bằng; nhà bị thế chấp",
    ),
    "construction_urban_planning": (
        "chủ công trình / bên làm chủ công trình; nhà thầu chính / bên nhận thầu chính; "
        "tư vấn giám sát / đơn vị giám sát thi công; viện quy hoạch / cơ quan nghiên cứu quy hoạch; "
        "đội trật tự xây dựng / lực lượng giữ trật tự xây dựng; "
        "kiến trúc sư trưởng / người đứng đầu thiết kế kiến trúc",
        "bản vẽ móng cọc; nhật ký thi công; đồ án phân khu; biển báo công trường; chỉ giới đường đỏ; "
        "hồ sơ hoàn công; biện pháp phá dỡ; chứng chỉ vật liệu; mô hình đô thị",
        "móng bị lún; công trình được nghiệm thu; đồ án quy hoạch hết hiệu lực; giàn giáo đổ sập",
    ),
    "commercial_law": (
        "đại lý bán lẻ / bên làm đại lý bán lẻ; thương nhân / người hoạt động thương mại; "
        "ban quản lý chợ / tổ điều hành chợ; bên nhượng quyền / chủ thể trao quyền thương hiệu; "
        "hiệp hội siêu thị / tổ chức đại diện siêu thị; bên giám định hàng / đơn vị giám định hàng hóa",
        "bảng giá niêm yết; hợp đồng đại lý; phiếu bảo hành; chương trình khuyến mại; mẫu hàng trưng bày; "
        "sổ quầy chợ; tem chống giả; đơn đặt hàng; cẩm nang nhượng quyền",
        "hàng hóa bị trả lại; kết thúc hội chợ; đại lý ngừng bán; giá tăng bất thường",
    ),
    "sports_health": (
        "bệnh viện tuyến vùng / cơ sở y tế tuyến vùng; bác sĩ trưởng khoa / thầy thuốc đứng đầu khoa; "
        "câu lạc bộ bơi / tổ chức tập luyện bơi; liên đoàn điền kinh / tổ chức quản lý điền kinh; "
        "nhà thuốc / cơ sở bán lẻ thuốc; huấn luyện viên / người phụ trách huấn luyện",
        "bệnh án điện tử; đơn thuốc; kết quả xét nghiệm; điều lệ giải đấu; thẻ vận động viên; lịch tiêm chủng; "
        "sổ trực cấp cứu; giáo án luyện tập; kho máu dự trữ",
        "bùng phát dịch bệnh; vận động viên chấn thương; giải đấu kết thúc; bệnh nhân xuất viện",
    ),
    "education": (
        "hiệu trưởng / người đứng đầu nhà trường; giáo viên chủ nhiệm / nhà giáo phụ trách lớp; "
        "hội đồng thi / tổ chức chấm thi; trường dạy nghề / cơ sở đào tạo nghề; "
        "sinh viên năm cuối / người học năm cuối; hội phụ huynh / tổ chức của phụ huynh",
        "đề thi tốt nghiệp; học bạ; thời khóa biểu; văn bằng nghề; giáo trình thực hành; danh sách học bổng; "
        "nội quy ký túc xá; luận văn; kế hoạch tuyển sinh",
        "lộ đề thi; khai giảng năm học; sinh viên thôi học; trường đổi địa điểm",
    ),
    "tax_fees": (
        "người nộp thuế / tổ chức hoặc cá nhân nộp thuế; chi cục thuế / cơ quan thuế cơ sở; "
        "đại lý thuế / bên làm dịch vụ về thuế; đơn vị thu phí / bên được giao thu phí; "
        "hộ khoán / hộ nộp thuế khoán; đội cưỡng chế thuế / lực lượng cưỡng chế thuế",
        "tờ khai thuế; biên lai lệ phí; mã số thuế; hóa đơn điện tử; biểu phí cầu cảng; giấy miễn giảm thuế; "
        "thông báo nợ thuế; bảng thuế khoán; đề nghị hoàn thuế",
        "nộp thừa tiền thuế; hộ khoán ngừng kinh doanh; hóa đơn bị mất; kết thúc kỳ thuế",
    ),
    "transportation": (
        "chủ bến xe / bên khai thác bến xe; lái tàu / người điều khiển tàu; hãng vận tải / doanh nghiệp chuyên chở; "
        "cảng vụ / cơ quan quản lý cảng; trạm đăng kiểm / cơ sở kiểm định xe; "
        "đội cứu hộ đường / lực lượng cứu hộ giao thông",
        "lệnh vận chuyển; biểu đồ chạy tàu; bằng lái; tem kiểm định; nhật ký hành trình; vé lượt; sơ đồ luồng lạch; "
        "giấy phép xe quá tải; phương án phân luồng",
        "cầu bị hỏng; tàu cập bến; xe hết niên hạn; xảy ra va chạm",
    ),
    "labor_wages": (
        "người sử dụng lao động / bên thuê lao động; người lao động / bên làm công; "
        "công đoàn cơ sở / tổ chức công đoàn tại chỗ; hòa giải viên lao động / người hòa giải việc lao động; "
        "trung tâm việc làm / đơn vị giới thiệu việc làm; "
        "bên cho thuê lại lao động / doanh nghiệp cho thuê lại lao động",
        "thang lương; hợp đồng thử việc; bảng chấm công; thỏa ước tập thể; nội quy lao động; sổ trợ cấp thôi việc; "
        "lịch nghỉ ca; phiếu tăng ca; danh sách đình công",
        "người lao động nghỉ sinh; hết hạn thử việc; xảy ra tai nạn lao động; đình công kết thúc",
    ),
    "information_technology": (
        "chủ nền tảng số / bên vận hành nền tảng số; trung tâm dữ liệu / đơn vị lưu giữ dữ liệu; "
        "nhà mạng / doanh nghiệp viễn thông; quản trị viên tên miền / người quản lý tên miền; "
        "đội ứng cứu mạng / lực lượng xử lý sự cố mạng; bên cấp chữ ký số / tổ chức chứng thực chữ ký số",
        "nhật ký truy cập; khóa mã hóa; tên miền; bản sao dữ liệu; mã nguồn mở; chính sách riêng tư; "
        "danh sách lỗ hổng; chứng thư số; sim trả trước",
        "hệ thống bị tấn công; rò rỉ dữ liệu; tên miền hết hạn; nâng cấp máy chủ",
    ),
    "investment": (
        "nhà đầu tư / bên bỏ vốn đầu tư; ban xúc tiến đầu tư / cơ quan xúc tiến đầu tư; "
        "quỹ khởi nghiệp / đơn vị rót vốn khởi nghiệp; chủ dự án / bên làm chủ dự án; "
        "ban quản lý khu công nghiệp / cơ quan điều hành khu công nghiệp; tổ thẩm định vốn / nhóm thẩm định nguồn vốn",
        "giấy chứng nhận dự án; cam kết góp vốn; báo cáo khả thi; bảo lãnh dự án; danh mục ưu đãi; "
        "tiến độ giải ngân; hợp đồng đối tác; hồ sơ mời gọi; đề xuất điều chỉnh vốn",
        "dự án chậm tiến độ; nhà đầu tư rút vốn; có thay đổi ưu đãi; khu công nghiệp lấp đầy",
    ),
    "enterprise": (
        "giám đốc công ty / người điều hành công ty; cổ đông lớn / bên nắm nhiều cổ phần; "
        "ban kiểm soát / bộ phận kiểm soát nội bộ; phòng đăng ký kinh doanh / cơ quan đăng ký kinh doanh; "
        "thành viên hợp danh / người góp vốn hợp danh; bên nhận sáp nhập / công ty tiếp nhận sáp nhập",
        "điều lệ công ty; sổ cổ đông; nghị quyết cổ đông; giấy đăng ký kinh doanh; phương án chia lãi; "
        "biên bản góp vốn; mẫu dấu công ty; kế hoạch sáp nhập; danh sách chủ nợ",
        "công ty giải thể; đổi người đại diện; cổ phần bị phong tỏa; đại hội bế mạc",
    ),
    "import_export": (
        "người khai hải quan / bên khai báo hải quan; chi cục cửa khẩu / cơ quan hải quan cửa khẩu; "
        "nhà nhập khẩu / bên mua hàng ngoài nước; kho ngoại quan / đơn vị giữ kho ngoại quan; "
        "hãng giao nhận / doanh nghiệp giao nhận hàng; trạm kiểm dịch / cơ sở kiểm dịch",
        "vận đơn; tờ khai hải quan; giấy xuất xứ; hạn ngạch gạo; phiếu kiểm dịch; niêm chì công-te-nơ; "
        "lệnh giao hàng; danh mục hàng cấm; chứng thư hun trùng",
        "hàng bị giữ ở cửa khẩu; tàu dỡ xong hàng; lô hàng nhiễm sâu; hạn ngạch đã hết",
    ),
    "civil_rights": (
        "người giám hộ / bên nhận giám hộ; người thừa kế / bên hưởng di sản; "
        "phòng hộ tịch / cơ quan đăng ký hộ tịch; công dân đủ tuổi / người dân đủ tuổi; "
        "cha mẹ nuôi / người nhận con nuôi; người quản lý di sản / bên trông giữ di sản",
        "giấy khai sinh; di chúc; sổ tạm trú; danh sách cử tri; thỏa thuận hôn nhân; đơn đổi họ tên; hồ sơ con nuôi; "
        "ảnh riêng tư; hộ chiếu",
        "người để lại di sản mất; trẻ đủ mười tám tuổi; vợ chồng ly hôn; mất giấy tờ tùy thân",
    ),
    "banking_monetary": (
        "ngân hàng thành viên / tổ chức tín dụng thành viên; bên vay vốn / khách hàng vay; "
        "quỹ tín dụng làng / tổ chức tín dụng của làng; tiệm đổi ngoại tệ / bàn đổi tiền nước ngoài; "
        "ngân hàng phát hành / cơ quan phát hành tiền; công ty ví điện tử / doanh nghiệp cấp ví điện tử",
        "sổ tiết kiệm; hợp đồng tín dụng; tỷ giá niêm yết; thẻ ghi nợ; hạn mức vay; giấy bảo lãnh; séc trắng; "
        "danh sách nợ xấu; mệnh lệnh chuyển tiền",
        "ngân hàng mất thanh khoản; bên vay quá hạn; tỷ giá biến động; thẻ bị khóa",
    ),
    "legal_services": (
        "luật sư tập sự / người tập sự luật sư; văn phòng công chứng / tổ chức hành nghề công chứng; "
        "thừa phát lại / người hành nghề thừa phát lại; đoàn luật sư / tổ chức của luật sư; "
        "đấu giá viên / người điều hành đấu giá; trợ giúp viên pháp lý / người làm trợ giúp pháp lý",
        "vi bằng; văn bản công chứng; thẻ luật sư; quy chế đấu giá; phiếu tư vấn; hợp đồng thù lao; sổ công chứng; "
        "bản dịch chứng thực; đơn trợ giúp",
        "luật sư bị đình chỉ; đấu giá không thành; chấm dứt tập sự; thân chủ từ chối",
    ),
    "insurance": (
        "doanh nghiệp bảo hiểm / công ty bảo hiểm; bên mua bảo hiểm / người mua bảo hiểm; "
        "giám định viên tổn thất / người giám định tổn thất; đại lý bảo hiểm / bên bán bảo hiểm; "
        "quỹ hưu trí / đơn vị giữ quỹ hưu trí; người thụ hưởng / bên được thụ hưởng",
        "hợp đồng bảo hiểm; yêu cầu bồi thường; thẻ bảo hiểm; bảng phí rủi ro; biên bản giám định tổn thất; "
        "sổ hưu trí; điều khoản loại trừ; quỹ dự phòng; giấy chứng tử",
        "xảy ra sự kiện bảo hiểm; đóng đủ phí; hợp đồng mất hiệu lực; người mua khai sai",
    ),
    "procedural_law": (
        "thẩm phán / người chủ tọa phiên tòa; thư ký tòa / người giúp việc phiên tòa; nguyên đơn / bên khởi kiện; "
        "bị đơn / bên bị kiện; cơ quan thi hành án / đơn vị phụ trách thi hành án; "
        "người làm chứng / nhân chứng của vụ việc",
        "đơn khởi kiện; bản án sơ thẩm; giấy triệu tập; biên bản hòa giải; chứng cứ số; tạm ứng án phí; "
        "quyết định kê biên; lời khai; đơn kháng cáo",
        "vụ án bị tạm đình chỉ; hòa giải không thành; bản án có hiệu lực; phiên tòa bị hoãn",
    ),
    "administrative_violations": (
        "người xử phạt / người có thẩm quyền phạt; người vi phạm / bên có hành vi vi phạm; "
        "đội kiểm tra liên ngành / lực lượng kiểm tra liên ngành; kho tang vật / đơn vị giữ tang vật; "
        "chủ phương tiện bị giữ / bên có phương tiện bị giữ; "
        "thanh tra chuyên ngành / lực lượng thanh tra chuyên ngành",
        "biên bản vi phạm; quyết định phạt; tang vật; phương tiện tạm giữ; giấy nộp phạt; lời giải trình; "
        "bản ảnh camera; sổ tịch thu; lệnh khám xe",
        "hết thời hiệu phạt; người vi phạm bỏ trốn; tang vật bị hỏng; nộp đủ tiền phạt",
    ),
    "accounting_auditing": (
        "kế toán trưởng / người đứng đầu kế toán; kiểm toán viên / người hành nghề kiểm toán; "
        "thủ quỹ / người giữ quỹ tiền mặt; công ty kiểm toán / doanh nghiệp kiểm toán; "
        "đơn vị được kiểm toán / bên được kiểm toán; hội kế toán / tổ chức nghề kế toán",
        "sổ cái; thư kiểm toán; phiếu thu; báo cáo tài chính; bảng khấu hao; thẻ kho; chứng chỉ kế toán; "
        "biên bản kiểm quỹ; số dư công nợ",
        "khóa sổ kế toán; kiểm toán viên từ nhiệm; sổ cái bị cháy; phát hiện sai sót trọng yếu",
    ),
    "criminal_liability": (
        "điều tra viên / người tiến hành điều tra; kiểm sát viên / người kiểm sát điều tra; "
        "bị can / người bị khởi tố; trại giam / cơ sở giam giữ; người bào chữa / bên nhận bào chữa; "
        "pháp nhân phạm tội / tổ chức phạm tội",
        "lệnh bắt; cáo trạng; vật chứng; sổ thăm gặp; kết luận điều tra; đơn xin ân xá; bản cung; "
        "hồ sơ lý lịch tư pháp; lệnh tạm giam",
        "bị can ra đầu thú; có kết quả giám định; người bị hại rút đơn; được xóa án tích",
    ),
    "intellectual_property": (
        "chủ sáng chế / bên nắm giữ sáng chế; tác giả / người sáng tác; cục bản quyền / cơ quan quản lý bản quyền; "
        "người nộp đơn nhãn hiệu / bên xin bảo hộ nhãn hiệu; nhà xuất bản / đơn vị xuất bản; "
        "đại diện sở hữu công nghiệp / người hành nghề sở hữu công nghiệp",
        "đơn sáng chế; mẫu nhãn hiệu; hợp đồng bản quyền; bản mô tả kiểu dáng; giống cây mới; bí mật kinh doanh; "
        "bản thảo gốc; văn bằng bảo hộ; bảng nhuận bút",
        "nhãn hiệu bị làm giả; văn bằng bị hủy; tác phẩm được xuất bản; có đơn phản đối",
    ),
    "securities": (
        "công ty chứng khoán / doanh nghiệp môi giới chứng khoán; tổ chức phát hành / bên chào bán chứng khoán; "
        "sở giao dịch / đơn vị vận hành thị trường; quỹ đại chúng / quỹ đầu tư công khai; "
        "nhà đầu tư cá nhân / người mua lẻ chứng khoán; trung tâm lưu ký / đơn vị lưu ký",
        "bản cáo bạch; lệnh bán khống; trái phiếu; tài khoản ký quỹ; báo cáo quỹ; danh sách nội bộ; chứng chỉ quỹ; "
        "quy chế niêm yết; thông tin bất thường",
        "cổ phiếu bị hủy niêm yết; giá chạm trần; đợt chào bán kết thúc; thị trường ngừng giao dịch",
    ),
    "other": (
        "đài khí tượng / đơn vị dự báo thời tiết; hội chữ thập / tổ chức cứu trợ; "
        "ban tôn giáo / cơ quan phụ trách tôn giáo; viện đo lường / đơn vị quản lý đo lường; "
        "chủ trang trại / bên làm chủ trang trại; đội phòng cháy / lực lượng chữa cháy",
        "bản tin bão; phương án cứu hộ; chuẩn cân đo; sổ quyên góp; tem thú y; sơ đồ thoát nạn; giấy nhập giống; "
        "lịch mùa vụ; giấy phép sinh hoạt đạo",
        "bão đổ bộ; phát hiện cân sai; kết thúc mùa vụ; kho hàng cứu trợ cạn",
    ),
}


def _domain_words(actors: str, things: str, events: str) -> DomainWords:
    pairs = [tuple(actor.split(" / ")) for actor in actors.split("; ")]
    return DomainWords(
        actors=tuple((first, second) for first, second in pairs),
        things=tuple(things.split("; ")),
        events=(*events.split("; "), *SHARED_EVENTS),
    )


WORDS: dict[str, DomainWords] = {domain: _domain_words(*raw) for domain, raw in _RAW.items()}
"""Word lists by domain slug."""
